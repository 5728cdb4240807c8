"""Work grows with the length of a file, in the shapes in which each step of training could look at all others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

cst = pytest.importorskip("libcst")
from unifiedamp.migrate.engine import migrate  # noqa: E402
from unifiedamp.migrate.source import Source  # noqa: E402

START = """\
import torch
from apex import amp

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
"""
STEP = """\
out = model(x)
loss = out.sum()
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
optimizer.step()
"""


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def in_a_row(many: int) -> str:
    return START + STEP * many


def in_functions(many: int) -> str:
    steps = [f"def train_{i}(model, optimizer, x):\n{indented(STEP)}" for i in range(many)]
    return "".join(steps) + START + "".join(f"train_{i}(model, optimizer, x)\n" for i in range(many))


def in_branches(many: int) -> str:
    steps = indented("".join(f"if mode == {i}:\n{indented(STEP)}" for i in range(many)))
    return f"{START}for mode in range(9):\n{steps}"


def before_the_loss(many: int) -> str:
    parts = "".join(f"part_{i} = f(out, {i})\ntotal = total + part_{i}\n" for i in range(many))
    return START + "out = model(x)\ntotal = 0\n" + parts + STEP.replace("out.sum()", "total.sum()")


def in_halves(many: int) -> str:
    step = "with autocast():\n    loss = model(x)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\n"
    steps = [f"def train_{i}(model, optimizer, scaler, x):\n{indented(step)}" for i in range(many)]
    return "from torch.cuda.amp import autocast\n" + "".join(steps)


class Counted(list):  # type: ignore[type-arg]
    """A list that counts what is taken from it."""

    taken = 0

    def __iter__(self) -> Iterator[object]:
        Counted.taken += len(self)
        return super().__iter__()


@pytest.fixture
def visited(monkeypatch):
    """Counts visits: nodes whose children or parents are asked for, and walks over all nodes of a file."""
    children, above, make = cst.CSTNode.children.fget, Source.above, Source.__init__
    join = Source.joined.__func__

    def counted_children(self):
        Counted.taken += 1
        return children(self)

    def counted_above(self, node):
        for one in above(self, node):
            Counted.taken += 1
            yield one

    def counted_nodes(self, *args):
        make(self, *args)
        self.nodes = Counted(self.nodes)

    def counted_together(cls, *args):
        source = join(cls, *args)
        source.nodes = Counted(source.nodes)
        return source

    monkeypatch.setattr(Source, "joined", classmethod(counted_together))
    monkeypatch.setattr(cst.CSTNode, "children", property(counted_children))
    monkeypatch.setattr(Source, "above", counted_above)
    monkeypatch.setattr(Source, "__init__", counted_nodes)

    def visits(text: str) -> int:
        Counted.taken = 0
        assert migrate("old.py", text.encode()).changed
        return Counted.taken

    return visits


@pytest.mark.parametrize("shape", [in_a_row, in_functions, in_branches, before_the_loss, in_halves])
def test_visits_grow_with_the_length(shape, visited):
    short, long = visited(shape(15)), visited(shape(60))
    assert long < 4.4 * short
