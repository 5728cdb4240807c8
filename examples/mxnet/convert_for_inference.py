"""Convert ResNet-50 to a low-precision graph for inference, export it and load it again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

import unifiedamp as ua
from examples.common import Smoke, images, run


def main(smoke: Smoke = False, policy: str = "mixed_bfloat16", out: Path = Path("runs")) -> None:
    """Convert, compare with float32 outputs, and write OUT/resnet50-symbol.json and -0000.params."""
    amp = ua.Amp("mxnet", "float32")
    data = images("mxnet", smoke)
    pixels = data.test_images[: 16 if smoke else 256].transpose(0, 3, 1, 2)
    x = amp.to_native(np.ascontiguousarray(pixels))

    from mxnet import gluon  # after the session, which makes MXNet importable with newer numpy

    from examples.mxnet.nets import resnet50
    from unifiedamp_mxnet import convert_model

    with amp.scope():
        model = resnet50(data.classes, smoke)
    amp.prepare(model)
    with amp.inference():
        expected = model(x).asnumpy()

    converted = convert_model(model, x, policy=policy)  # raises if the device cannot run the policy
    out.mkdir(parents=True, exist_ok=True)
    symbol, params = write(converted, x, out / "resnet50")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot decide type")  # MXNet assumes float32 for the input, which is correct
        loaded = gluon.SymbolBlock.imports(symbol, ["data"], params)
    found = loaded(x).asnumpy()

    error = np.abs(found - expected).max() / np.abs(expected).max()
    casts = Path(symbol).read_text().count('"op": "amp_cast"')
    print(f"{policy}: {casts} casts in the graph; largest error {error:.4f} of the largest logit")
    print(f"same class as in float32: {(found.argmax(1) == expected.argmax(1)).mean():.0%} of {len(x)} images")
    print(f"written to {symbol} and {params}")


def write(converted: Any, x: Any, path: Path) -> tuple[str, str]:
    """Export the converted model; return the paths of its two files."""
    converted.hybridize()
    converted(x)
    converted.export(str(path), remove_amp_cast=False)  # MXNet removes the casts by default
    return f"{path}-symbol.json", f"{path}-0000.params"


if __name__ == "__main__":
    run(main)
