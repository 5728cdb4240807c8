"""ResNet-50 from Gluon's model zoo."""

from __future__ import annotations

from typing import Any

from mxnet import init
from mxnet.gluon.model_zoo import vision


def resnet50(classes: int, smoke: bool = False) -> Any:
    """Return ``resnet50_v1`` with new weights; two narrow blocks in a smoke run."""
    tiny = {"block": vision.BottleneckV1, "layers": [1, 1], "channels": [8, 32, 64]}
    model = vision.ResNetV1(**tiny, classes=classes) if smoke else vision.resnet50_v1(classes=classes)
    model.initialize(init.MSRAPrelu())
    return model
