"""``Amp(reduce_dtype=...)`` as an argument, of backends that have it and of one that does not."""

import json

import pytest

import unifiedamp as ua


def installed(*names):
    found = ua.available_backends()
    return [pytest.param(name, marks=[] if found[name].installed else pytest.mark.skip(name)) for name in names]


BACKENDS = installed("torch", "tensorflow", "mxnet")


def made(backend, policy="float32", **settings):
    return ua.Amp(backend, policy, device="cpu", **settings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("written", "meant"), [("bf16", "bfloat16"), (" FP32 ", "float32"), (None, None)])
def test_a_dtype_is_taken_by_any_of_its_names(backend, written, meant):
    amp = made(backend, reduce_dtype=written)
    rows = {row.setting: row.value for row in amp.explain()}
    assert (meant or "float") in str(rows.get("gradients of ranks", "float"))
    assert ("reduce_dtype" in repr(amp)) == (meant is not None)
    amp.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_needs_a_check(backend):
    with pytest.raises(
        ua.ConfigError, match="reduce_dtype='float16' overflows above 65504.*use reduce_dtype='bfloat16'"
    ):
        made(backend, reduce_dtype="float16")
    made(backend, reduce_dtype="float16", loss_scale=1.0).close()


@pytest.mark.parametrize("wrong", ["float8", "int8", "bflot16", 16, True])
def test_another_dtype_is_refused(wrong):
    with pytest.raises(ua.PolicyError, match="reduce_dtype must be 'float32', 'float16' or 'bfloat16', got"):
        ua.Amp("toy", "float32", reduce_dtype=wrong)


def test_a_backend_without_it_says_so():
    with pytest.raises(ua.UnsupportedError, match="reduce_dtype='bfloat16': backend 'toy' cannot: not declared"):
        ua.Amp("toy", "float32", reduce_dtype="bfloat16")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_holds_it(backend, tmp_path):
    path = tmp_path / "amp.json"
    path.write_text(json.dumps({"backend": backend, "policy": "float32", "reduce_dtype": "bfloat16", "device": "cpu"}))
    amp = ua.Amp.from_config(path)
    assert amp.backend.spec.reduce_dtype == "bfloat16"
    amp.close()
    with pytest.raises(ua.ConfigError, match="reduce_dtype"):
        ua.Amp.from_config({"backend": backend, "reduce_dtype": 16})
