"""Makes the modules beside the tests importable, and quiets what the trainers say of themselves."""

import logging
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

HERE = Path(__file__).parent
QUIET = (
    # Lightning: of a small machine, and of models and loaders made for a test.
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:The number of training batches",
    "ignore:Starting from v1.9.0, `tensorboardX` has been removed",
    "ignore:GPU available but not used",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:.*isinstance.treespec, LeafSpec.. is deprecated",
    "ignore:Precision .* is not supported by the model summary",
    "ignore:`training_step` returned `None`",
    # Accelerate and Hugging Face's Trainer: of loaders without a GPU.
    "ignore:'pin_memory' argument is set as true but no accelerator is found",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in QUIET:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(autouse=True)
def quiet_and_alone(tmp_path, monkeypatch):
    """Run in a separate folder, without log lines; Accelerate's state, and its variables, are one per process."""
    monkeypatch.chdir(tmp_path)
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"):
        monkeypatch.setenv(name, "")  # so that what an older transformers leaves there is taken back
        monkeypatch.delenv(name)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()
