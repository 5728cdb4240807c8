"""ResNet-50 becomes a graph for inference that holds its casts: written to a file, read back, called as it is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from unifiedamp_examples.common import Smoke, images, run

import unifiedamp as ua


def main(smoke: Smoke = False, policy: str = "mixed_bfloat16", out: Path = Path("runs")) -> None:
    """Convert, compare the outputs with float32's, and write OUT/resnet50-symbol.json and -0000.params."""
    amp = ua.Amp("mxnet", "float32")
    data = images("mxnet", smoke)
    pixels = data.test_images[: 16 if smoke else 256].transpose(0, 3, 1, 2)
    x = amp.to_native(np.ascontiguousarray(pixels))

    from mxnet import gluon  # after the session was made: it lends MXNet what newer numpys lack
    from unifiedamp_examples.mxnet.nets import resnet50

    from unifiedamp_mxnet import convert_model

    with amp.scope():
        model = resnet50(data.classes, smoke)
    amp.prepare(model)
    with amp.inference():
        expected = model(x).asnumpy()

    converted = convert_model(model, x, policy=policy)  # refuses a policy that this device cannot run
    out.mkdir(parents=True, exist_ok=True)
    symbol, params = write(converted, x, out / "resnet50")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot decide type")  # of the input: it takes float32, which it is
        loaded = gluon.SymbolBlock.imports(symbol, ["data"], params)
    found = loaded(x).asnumpy()

    error = np.abs(found - expected).max() / np.abs(expected).max()
    casts = Path(symbol).read_text().count('"op": "amp_cast"')
    print(f"{policy}: {casts} casts in the graph; largest error {error:.4f} of the largest logit")
    print(f"same class as in float32: {(found.argmax(1) == expected.argmax(1)).mean():.0%} of {len(x)} images")
    print(f"written to {symbol} and {params}")


def write(converted: Any, x: Any, path: Path) -> tuple[str, str]:
    """Write the converted model; return its two files."""
    converted.hybridize()
    converted(x)
    converted.export(str(path), remove_amp_cast=False)  # MXNet would leave the casts out
    return f"{path}-symbol.json", f"{path}-0000.params"


if __name__ == "__main__":
    run(main)
