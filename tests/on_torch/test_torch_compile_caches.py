"""Programs that torch keeps on disk: those of regions of another dtype are others, also where torch's own key does not
know it (before 2.13).

torch's settings are changed by their own ``patch``: after pytest's ``monkeypatch`` a setting is gone.
"""

import importlib

import torch

from unifiedamp_torch.compiling import compile as compiling


def tag_inside():
    """The tag under which a compiled step would be looked up here."""
    config = importlib.import_module("torch.compiler.config")
    with compiling._cached_by_autocast():
        return config.cache_key_tag


def test_each_region_has_its_own_programs():
    config = importlib.import_module("torch.compiler.config")
    with config.patch(cache_key_tag="mine"):
        outside, found = tag_inside(), []
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                found.append(tag_inside())
                with torch.autocast("cpu", enabled=False):
                    assert tag_inside() not in found
        assert len({outside, *found}) == 3
        assert all(tag.startswith("mine") for tag in (outside, *found))
        assert config.cache_key_tag == "mine"


def test_where_keys_take_no_tag_the_cache_is_left_out(monkeypatch):
    functorch = importlib.import_module("torch._functorch.config")
    monkeypatch.setattr(compiling, "_tagged_config", lambda: None)
    with functorch.patch(enable_autograd_cache=True):
        with compiling._cached_by_autocast():
            assert not functorch.enable_autograd_cache
        assert functorch.enable_autograd_cache
