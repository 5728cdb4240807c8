"""One answer for all backends: which 16-bit dtypes a processor computes in natively."""

from pathlib import Path

import pytest

from unifiedamp.backend import processor


@pytest.mark.parametrize(
    ("line", "dtype", "units"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_bf16", "bfloat16", ("AVX512-BF16", "AMX-BF16")),
        ("flags\t\t: fpu avx2 avx_ne_convert", "bfloat16", ()),
        ("flags\t\t: fpu avx512f avx512_fp16", "float16", ("AVX512-FP16",)),
        ("Features\t: fp asimd asimdhp bf16", "bfloat16", ("Arm BF16",)),
        ("Features\t: fp asimd asimdhp", "float16", ("Arm FP16",)),
    ],
)
def test_units_that_make_a_dtype_fast(monkeypatch, line, dtype, units):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\nmodel name\t: Some CPU\n{line}\n")
    found = processor.read_processor()
    assert found.name == "Some CPU"
    assert found.fast_units(dtype) == units
    assert set(units) <= set(found.units())


def test_a_system_that_says_nothing_has_no_units(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    found = processor.read_processor()
    assert (found.family, found.model, found.flags, found.fast_units("bfloat16")) == ("?", "?", frozenset(), ())
