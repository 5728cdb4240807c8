"""``Switch``: a process-wide setting is set while somebody is inside, and restored by the last to leave."""

import threading

import pytest

from unifiedamp.backend.switches import Switch, Switches

TURNS = 200


class Setting:
    """A setting, and all values that it had."""

    def __init__(self, value):
        self.had = [value]

    @property
    def value(self):
        return self.had[-1]

    def switch(self, wanted):
        return Switch(lambda: self.value, self.had.append, wanted)


def test_nested_entries_write_once():
    setting = Setting("found")
    switch = setting.switch("wanted")
    with switch, switch:
        assert setting.value == "wanted"
    assert setting.had == ["found", "wanted", "found"]
    setting.had.append("other")
    with switch:
        assert setting.value == "wanted"
    assert setting.value == "other", "what was found last"


def test_an_exception_restores_several_in_reverse():
    order, settings = [], [Setting(0), Setting(1)]
    switches = Switches([
        Switch(lambda each=each: each.value, lambda value, at=at: order.append((at, value)), "wanted")
        for at, each in enumerate(settings)
    ])  # fmt: skip
    with pytest.raises(KeyError), switches:
        raise KeyError
    assert order == [(0, "wanted"), (1, "wanted"), (1, 1), (0, 0)]
    assert switches
    assert not Switches()


def test_one_of_them_that_cannot_be_set_restores_those_before():
    def refuse(value):
        raise OSError(value)

    setting = Setting("found")
    switches = Switches([setting.switch("wanted"), Switch(lambda: "found", refuse, "wanted")])
    with pytest.raises(OSError, match="wanted"), switches:
        pass
    assert setting.had == ["found", "wanted", "found"]


def test_threads_share_a_setting():
    setting, seen = Setting("found"), []
    switch = setting.switch("wanted")

    def work():
        for _ in range(TURNS):
            with switch:
                seen.append(setting.value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert seen == ["wanted"] * (4 * TURNS)
    assert setting.value == "found"
