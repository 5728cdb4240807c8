"""``to_native`` and ``prefetch`` mean the same for every array: floating-point batches arrive in float32."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

THIRD = 1 / 3  # exact in no binary dtype


class Foreign:
    """An array of another framework, which can be read through DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def aligned(values, offset):
    """``values`` at ``offset`` bytes past a multiple of 64, which some frameworks want arrays to begin at."""
    room = np.zeros(values.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    array = room[start : start + values.nbytes].view(values.dtype)
    array[:] = values
    return array


FORMS = {
    "array": np.asarray,
    "DLPack": lambda values: Foreign(aligned(values, 0)),
    "DLPack unaligned": lambda values: Foreign(aligned(values, 8)),
}


def arrivals(amp, array):
    """``array`` as each way into the session hands it out."""
    (ahead,) = amp.prefetch([array])
    return [amp.to_native(array), ahead]


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floating_input_comes_out_in_float32(harness, kind, dtype):
    amp = session(harness)
    array = np.array([THIRD, 2.0], dtype)
    for native in arrivals(amp, FORMS[kind](array)):
        assert harness.dtype_of(native) == "float32"
        assert amp.to_numpy(native).tolist() == array.astype(np.float32).tolist()


NO_NUMBERS = {
    "ragged": [[1.0, 2.0], [3.0]], "None": [1.0, None], "objects": np.array([object(), 1], object), "dict": {"x": 1.0},
    "dates": np.array(["2020-01-01"], "datetime64[D]"), "records": np.zeros(2, [("a", "f4")]), "function": len,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # numpy before 1.24 makes one of objects
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_holds_no_numbers_is_refused(harness, kind):
    with pytest.raises(ua.WrongObjectError, match="amp.to_native: .*pass"):
        session(harness).to_native(NO_NUMBERS[kind])


def test_wider_input_than_float64_comes_out_in_float32(harness):
    amp = session(harness)
    native = amp.to_native(np.array([THIRD, 2.0], np.longdouble))
    assert (harness.dtype_of(native), amp.to_numpy(native).tolist()) == ("float32", [np.float32(THIRD), 2.0])


def test_lists_and_numbers_come_out_in_float32(harness):
    amp = session(harness)
    for value in ([THIRD, 2.0], 0.5, np.float64(THIRD)):
        native = amp.to_native(value)
        assert harness.dtype_of(native) == "float32"
        assert amp.to_numpy(native).tolist() == np.float32(value).tolist()


@pytest.mark.parametrize("kind", FORMS)
def test_float16_input_stays_float16(harness, kind):
    amp = session(harness)
    array = np.array([THIRD, 2.0], np.float16)
    for native in arrivals(amp, FORMS[kind](array)):
        assert harness.dtype_of(native) == "float16"
        assert amp.to_numpy(native).astype(np.float64).tolist() == array.astype(np.float64).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_integers_stay_integers(harness, dtype):
    amp = session(harness)
    for native in arrivals(amp, np.array([0, 7, 200], dtype)):
        read = amp.to_numpy(native)
        assert read.dtype.kind in "iu"
        assert read.tolist() == [0, 7, 200]


@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("given", [np.float64, np.float32, np.float16, np.uint8])
def test_the_dtype_asked_for(harness, given, wanted):
    amp = session(harness)
    array = np.array([1.5, 2.0, 96.0], given)
    native = amp.to_native(array, dtype=wanted)
    assert harness.dtype_of(native) == wanted
    assert amp.to_numpy(native).astype(np.float64).tolist() == array.astype(np.float64).tolist()


@pytest.mark.parametrize("given", [np.float32([1.0, -2.5]), 0.5], ids=["array", "number"])
def test_numbers_in_bfloat16_come_back_in_float32(harness, given):
    """numpy has no bfloat16."""
    amp = session(harness)
    back = amp.to_numpy(amp.to_native(given, "bfloat16"))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(np.ravel(back), np.ravel(given))


def test_bfloat16_of_numpys_extension_stays_bfloat16(harness):
    amp = session(harness)
    array = np.array([THIRD, -2.5], pytest.importorskip("ml_dtypes").bfloat16)
    for native in arrivals(amp, array):
        assert harness.dtype_of(native) == "bfloat16"
        assert amp.to_numpy(native).tolist() == array.astype(np.float32).tolist()


@pytest.mark.parametrize("given", [np.array([THIRD]), [THIRD]], ids=["array", "list"])
def test_float64_where_it_is_asked_for(harness, given):
    amp = session(harness)
    try:
        native = amp.to_native(given, dtype="float64")
    except ua.UnsupportedError as error:
        pytest.skip(f"declared: {error}")
    assert harness.dtype_of(native) == "float64"
    assert amp.to_numpy(native).tolist() == [THIRD]


def test_a_native_tensor_comes_back_as_it_is_unless_a_dtype_is_asked_for(harness):
    amp = session(harness)
    low = amp.to_native(np.array([THIRD, 2.0]), dtype="bfloat16")
    for native in arrivals(amp, low):
        assert harness.dtype_of(native) == "bfloat16"
    wide = amp.to_native(low, dtype="float32")
    assert harness.dtype_of(wide) == "float32"
    assert amp.to_numpy(wide).tolist() == amp.to_numpy(low).tolist()


@pytest.mark.parametrize("dtype", ["float8", "int32", "half", np.float32, 16])
def test_a_dtype_that_it_does_not_know(harness, dtype):
    with pytest.raises(ua.ConfigError, match="amp.to_native: dtype must be one of float32, float16, bfloat16, float64"):
        session(harness).to_native(np.zeros(2), dtype=dtype)


def test_training_on_float64_batches(harness, form):
    run = probe_run(harness, form, values=(1.0, 1.0))
    for gradients in ([1.0, 2.0], [3.0, -1.0]):
        run.step(run.amp.to_native(np.array(gradients, np.float64)))
    assert run.weights() == pytest.approx([0.6, 0.9])


def test_means_of_several_tensors_are_read_together(harness):
    """As a measured run reads losses: scalars, and tensors of other shapes beside them."""
    amp, arrays = session(harness), [np.float32(3.0), np.float32(np.inf), np.float32(-0.5)]
    native = [amp.to_native(array) for array in arrays]
    assert amp.backend.device.means(native) == [3.0, np.inf, -0.5]
    more = [*native, amp.to_native(np.float32([[1.0, 2.0], [3.0, 6.0]]))]
    assert amp.backend.device.means(more) == [3.0, np.inf, -0.5, 3.0]
    assert amp.backend.device.means([]) == []


@pytest.mark.parametrize("given", [3.5, True, [1.0, 2.0], np.float32(0.5), np.arange(3)], ids=repr)
def test_what_is_no_tensor_is_read_as_numpy_reads_it(harness, given):
    """As a loss that a loop made a number of already."""
    read = session(harness).to_numpy(given)
    assert isinstance(read, np.ndarray)
    assert (read.dtype, read.tolist()) == (np.asarray(given).dtype, np.asarray(given).tolist())


LAYOUTS = {
    "reversed": lambda array: array[::-1],
    "transposed": lambda array: array.T,
    "strided": lambda array: np.repeat(array, 2, 1)[:, ::2],
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "empty": lambda array: array[:0],
}


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_arrives_however_it_lies_in_memory(harness, layout, dtype, read_only):
    """As slices, loaded files and memory maps lie."""
    amp = session(harness)
    array = LAYOUTS[layout](np.array([[1, 2, 3], [4, 5, 6]], dtype))
    array.setflags(write=not read_only)
    for native in arrivals(amp, array):
        read = amp.to_numpy(native)
        assert read.shape == array.shape
        assert read.tolist() == array.tolist()
