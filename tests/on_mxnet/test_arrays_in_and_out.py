"""Batches that only MXNet could get wrong, beside the suite's ``test_arrays``."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import cast, dtype_name, from_numpy, mx


@pytest.fixture
def amp():
    return ua.Amp("mxnet", "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8", "int8", "bool"])
def test_a_batch_keeps_its_dtype_and_comes_back(amp, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = amp.to_native(values)
    assert tensor.dtype == values.dtype
    assert np.array_equal(amp.to_numpy(tensor), values)
    assert amp.to_native(tensor) is tensor


def test_bfloat16_comes_back_as_float32(amp):
    low = cast(amp.to_native(np.ones((2,), np.float32)), "bfloat16")
    assert amp.to_numpy(low).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float64", "longdouble", ">f8", ">f4"])
def test_wider_floats_come_out_in_float32(amp, dtype):
    tensor = amp.to_native(np.array([1 / 3, 2.0], dtype))
    assert dtype_name(tensor) == "float32"
    assert amp.to_numpy(tensor).tolist() == np.array([1 / 3, 2.0], np.float32).tolist()


def test_numpys_bfloat16_stays(amp):
    values = np.array([1 / 3, 2.0]).astype(pytest.importorskip("ml_dtypes").bfloat16)
    tensor = amp.to_native(values)
    assert dtype_name(tensor) == "bfloat16"
    assert amp.to_numpy(tensor).tolist() == values.astype(np.float32).tolist()


def test_an_array_of_mxnets_own_stays_on_its_context(amp):
    there = from_numpy(np.array([1 / 3]), mx.cpu(1))
    assert amp.to_native(there) is there
    low = amp.to_native(there, dtype="float16")
    assert dtype_name(low) == "float16"
    assert str(low.as_nd_ndarray().context) == "cpu(1)"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_single_number_in_the_dtype_asked_for(amp, dtype):
    tensor = amp.to_native(0.5, dtype=dtype)
    assert dtype_name(tensor) == dtype
    assert amp.to_numpy(tensor).reshape(()).tolist() == 0.5


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.array([1j])])
def test_dtypes_that_mxnet_has_no_arrays_of(amp, array):
    with pytest.raises(
        ua.WrongObjectError,
        match="amp.to_native: .*numpy's dtype",
    ):
        amp.to_native(array)


def test_an_array_that_numpy_cannot_read(amp):
    class OnAnotherDevice:
        def __dlpack__(self, **_options):
            raise BufferError("not on the host")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(ua.WrongObjectError, match="cannot read this OnAnotherDevice"):
        amp.to_native(OnAnotherDevice())
