"""Notebooks: code cells are migrated together, and every other byte stays."""

from __future__ import annotations

import json

import pytest

from unifiedamp.errors import ConfigError
from unifiedamp.migrate.notebooks import migrate_notebook

CELLS = [
    ["%matplotlib inline\n", "!pip install torch\n", "import torch\n", "from torch.amp import GradScaler, autocast"],
    ["model = torch.nn.Linear(2, 2)\n", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
     'scaler = GradScaler("cpu")  # Skalierung für später'],
    ["%%bash\n", "ls"],
    ["losses = []\n", "for _ in range(3):\n",
     '    with autocast("cpu"):\n', "        loss = model(torch.ones(2, 2)).sum()\n",
     "    scaler.scale(loss).backward()\n", "    scaler.step(optimizer)\n", "    scaler.update()\n",
     "    losses.append(float(loss.detach()))\n", "files = !ls\n"],
]  # fmt: skip
TEXT = ["# A **GradScaler**\n", "and text"]


def notebook(cells=CELLS, indent=1, ascii_only=False):
    made = [{"cell_type": "markdown", "metadata": {"b": 1, "a": []}, "source": TEXT}]
    made += [{"cell_type": "code", "execution_count": None, "outputs": [{"x": 1.50}], "source": c} for c in cells]
    return (json.dumps({"cells": made, "nbformat": 4}, indent=indent, ensure_ascii=ascii_only) + "\n").encode()


def sources(content):
    return ["".join(cell["source"]) for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("indent", [1, 4, None])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_cells_are_migrated_and_the_rest_keeps_its_bytes(indent, ascii_only):
    content = notebook(indent=indent, ascii_only=ascii_only)
    done = migrate_notebook("a.ipynb", content)
    new = sources(done.after)
    assert new[0].splitlines()[:3] == ["%matplotlib inline", "!pip install torch", "import torch"]
    assert new[2] == "%%bash\nls"
    assert new[3].endswith("files = !ls\n")
    assert "Skalierung für später" in new[1]
    for text, place in zip(new, range(1, 5), strict=True):
        before = json.loads(content)
        before["cells"][place]["source"] = text.splitlines(keepends=True)
        content = (json.dumps(before, indent=indent, ensure_ascii=ascii_only) + "\n").encode()
    assert done.after == content
    pytest.importorskip("torch")
    code = "\n".join(text for text in new if not text.startswith("%%"))
    space: dict = {}
    exec("\n".join(line for line in code.splitlines() if not line.startswith(("%", "!", "files"))), space)
    assert len(space["losses"]) == 3
    assert space["amp"].applied_steps == 3


def test_a_source_that_is_one_text_stays_one():
    content = notebook(["".join(cell) for cell in CELLS])
    done = migrate_notebook("a.ipynb", content)
    assert all(isinstance(cell["source"], str) for cell in json.loads(done.after)["cells"][1:])
    assert not migrate_notebook("a.ipynb", done.after).changed


def test_findings_name_the_cell_and_its_line():
    cells = [CELLS[0], ['a = GradScaler("cpu")\n', 'b = GradScaler("cpu")']]
    done = migrate_notebook("a.ipynb", notebook(cells))
    assert not done.changed
    assert any(found.what.startswith("cell 3, line ") for found in done.findings)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"\xff", b'{"cells": 3}', b'{"cells": [{"cell_type": "code"}]}',
                                     b'{"cells": [' * 5000])  # fmt: skip
def test_what_is_no_notebook_gets_one_line(content):
    with pytest.raises(ConfigError, match=r"^a\.ipynb: "):
        migrate_notebook("a.ipynb", content)
