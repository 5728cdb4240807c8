"""Batches as numpy arrays, for backends whose framework reads those."""

from __future__ import annotations

from typing import Any

from ..errors import WrongObjectError, shown
from ..names import NumpyArray


def host_array(value: Any) -> NumpyArray:
    """Return a numpy array, list or number as a numpy array, for ``Device.to_native``.

    Raises:
        WrongObjectError: the rows of a list differ in length, or the elements are no numbers, truth values or text.
    """
    import numpy as np  # not on import of the package

    try:
        found: NumpyArray = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise WrongObjectError(
            f"amp.to_native: numpy makes no array of this {type(value).__name__} ({shown(str(error), 100)}); pass "
            "numbers, in rows of equal length"
        ) from None
    if found.dtype.kind in "OMm" or found.dtype.names is not None:
        raise WrongObjectError(
            f"amp.to_native: the elements of this {type(value).__name__} are no numbers (numpy's dtype "
            f"{str(found.dtype)!r}); pass an array of numbers"
        )
    return found
