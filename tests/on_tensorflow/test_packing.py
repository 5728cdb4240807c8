"""Gradients that are joined for their sum, and taken apart after it."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from unifiedamp_tensorflow.distributed.packing import Packed  # noqa: E402


def test_gradients_are_joined_by_dtype_and_taken_apart_in_order():
    dense = [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7.0, np.float16), np.zeros([0, 4], np.float32),
        np.array([8.0, 9.0], np.float16), np.array([[10.0]], np.float32),
    ]  # fmt: skip
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([5, 2]))
    packed = Packed([tf.constant(dense[0]), rows, *map(tf.constant, dense[1:])])
    assert [each.dtype.name for each in packed.tensors] == ["float32", "float16", "float32"]
    assert packed.tensors[-1] is rows
    first, found_rows, *others = packed.unpacked([packed.tensors[0] * 2, packed.tensors[1] * 2, rows])
    assert found_rows is rows
    for found, expected in zip([first, *others], dense, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected * 2)


def test_a_gradient_of_unknown_shape_stays_alone():
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([2])])
    def step(unknown, known):
        packed = Packed([unknown, known])
        seen.extend(each.shape for each in packed.tensors)
        return packed.unpacked(packed.tensors)

    unknown, known = step(tf.ones([3, 2]), tf.constant([4.0, 5.0]))
    assert [shape.rank for shape in seen] == [1, 2]
    np.testing.assert_array_equal(unknown, np.ones([3, 2]))
    np.testing.assert_array_equal(known, [4.0, 5.0])


def test_no_gradients_are_joined():
    packed = Packed([])
    assert (packed.tensors, packed.unpacked([])) == ([], [])
