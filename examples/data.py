"""The recipe's data: two sets of small gray images, in batches whose order depends only on seed and epoch."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from unifiedamp import ConfigError

Array = npt.NDArray[Any]

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Installed by Debian's package ``dataset-fashion-mnist``."""


@dataclass(frozen=True)
class Data:
    """Images (n, height, width, channels), float32, zero mean and unit variance; labels (n,), int32."""

    name: str
    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    classes: int = 10

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, (height, width, channels)."""
        return self.train_images.shape[1:]

    def first(self, samples: int | None) -> Data:
        """Return the data with only the first ``samples`` training images (None: all); test images are unchanged."""
        images, labels = self.train_images[:samples], self.train_labels[:samples]
        return replace(self, train_images=images, train_labels=labels)

    def batches(self, axes: Sequence[int], size: int, seed: int, epoch: int) -> Batches:
        """Return an epoch's training batches.

        The order depends only on (seed, epoch), so a resumed run continues with the same batches.

        Args:
            axes: the framework's permutation of the axes of an NHWC batch.
            size: images per batch.
            seed, epoch: seed of the order.
        """
        return Batches(self, axes, size, seed, epoch)


@dataclass(frozen=True)
class Batches:
    """The training batches of an epoch; see :meth:`Data.batches`. Iterating again starts anew."""

    data: Data
    axes: Sequence[int]
    size: int
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.data.train_labels) // self.size

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.data.train_labels))
        for number in range(len(self)):
            chosen = order[number * self.size : (number + 1) * self.size]
            images = np.ascontiguousarray(self.data.train_images[chosen].transpose(self.axes))
            yield images, self.data.train_labels[chosen]


def load(name: str, folder: str | None, kit: ModuleType) -> Data:
    """Return the data set ``digits`` or ``fashion-mnist``.

    Args:
        name: the data set.
        folder: location or download folder of Fashion-MNIST; None looks in ``FASHION_MNIST`` and downloads to
            ``~/.cache/unifiedamp``.
        kit: the framework's module of ``examples/models``, for its downloader.

    Raises:
        ConfigError: the data is not available; the message says how to get it.
    """
    return _digits() if name == "digits" else _fashion_mnist(Path(folder) if folder else None, kit)


def _digits() -> Data:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "data 'digits' comes with scikit-learn, which is not installed: pip install scikit-learn"
        ) from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = ((images[order].reshape(-1, 8, 8, 1) - 4.884) / 6.017).astype(np.float32)
    labels = labels[order].astype(np.int32)
    return Data("digits", images[360:], labels[360:], images[:360], labels[:360])


def _fashion_mnist(folder: Path | None, kit: ModuleType) -> Data:
    found = folder or FASHION_MNIST
    if (found / "train-images-idx3-ubyte.gz").exists():
        parts = [_read_idx(found / f"{part}-ubyte.gz") for part in _FASHION_FILES]
    else:
        parts = _download(kit, folder or Path.home() / ".cache" / "unifiedamp")
    train, train_labels, test, test_labels = parts
    images = [((part.reshape(-1, 28, 28, 1) - 72.94) / 90.02).astype(np.float32) for part in (train, test)]
    return Data("fashion-mnist", images[0], train_labels.astype(np.int32), images[1], test_labels.astype(np.int32))


_FASHION_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _download(kit: ModuleType, folder: Path) -> list[Array]:
    try:
        return list(kit.download_fashion_mnist(folder))
    except Exception as error:
        raise ConfigError(
            f"Fashion-MNIST is not in {FASHION_MNIST}, and the framework's downloader failed ({error}): install the "
            "package dataset-fashion-mnist, or put its four .gz files in a folder and name it with data_folder"
        ) from error


def _read_idx(path: Path) -> Array:
    try:
        content = gzip.decompress(path.read_bytes())
        sizes = np.frombuffer(content, ">i4", content[3], offset=4)
        return np.frombuffer(content, np.uint8, int(np.prod(sizes)), offset=4 + 4 * len(sizes)).reshape(sizes)
    except (OSError, EOFError, ValueError, IndexError, gzip.zlib.error) as error:
        raise ConfigError(f"{path} is not a whole file of Fashion-MNIST: {error}") from error
