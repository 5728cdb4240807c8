"""The predictions of a classifier on the test images."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

import unifiedamp as ua

from .data import Data


def predict(amp: ua.Amp, kit: ModuleType, model: Any, data: Data, batch_size: int = 500) -> Any:
    """Return the predicted class of each test image, shape (n,)."""
    found = []
    with amp.inference(model):
        for start in range(0, len(data.test_labels), batch_size):
            images = data.test_images[start : start + batch_size].transpose(kit.IMAGE_AXES)
            found.append(amp.to_numpy(model(amp.to_native(np.ascontiguousarray(images)))).argmax(1))
    return np.concatenate(found)
