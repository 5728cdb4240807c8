"""The networks of the MXNet examples: ResNet-50 from Gluon's model zoo, and a small CNN."""

from __future__ import annotations

from typing import Any

from mxnet import init
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision


def resnet50(classes: int, smoke: bool = False) -> Any:
    """Return ``resnet50_v1`` with new weights; two narrow blocks in a smoke run."""
    tiny = {"block": vision.BottleneckV1, "layers": [1, 1], "channels": [8, 32, 64]}
    model = vision.ResNetV1(**tiny, classes=classes) if smoke else vision.resnet50_v1(classes=classes)
    model.initialize(init.MSRAPrelu())
    return model


def cnn(classes: int, width: int) -> Any:
    """Return two convolutions and two dense layers with new weights."""
    model = nn.HybridSequential()
    for channels in (width, 2 * width):
        model.add(nn.Conv2D(channels, 3, activation="relu"), nn.MaxPool2D())
    model.add(nn.Dense(4 * width, activation="relu"), nn.Dense(classes))
    model.initialize(init.Xavier())
    return model
