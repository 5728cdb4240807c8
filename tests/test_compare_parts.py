"""The parts of ``unifiedamp compare`` and ``tune`` that compute: searches, scores, kernels, ratios, advice."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifiedamp.compare import parity
from unifiedamp.compare.advice import advise
from unifiedamp.compare.kernels import kind, tensor_core_share
from unifiedamp.compare.rows import Row, Task, set_ratios, tasks
from unifiedamp.compare.scores import scores
from unifiedamp.compare.search import largest
from unifiedamp.errors import AmpError
from unifiedamp.tune.search import fewest, largest_clean
from unifiedamp.turns import in_turns, ratio

# -- searches ----------------------------------------------------------------------------------------------------------


@given(limit=st.integers(0, 5000), start=st.integers(1, 200), cap=st.integers(1, 4000), grain=st.integers(1, 64))
def test_the_largest_that_fits(limit, start, cap, grain):
    tried = []
    found = largest(lambda size: tried.append(size) or size <= limit, start, cap, grain)
    assert all(1 <= size <= cap for size in tried)
    assert len(set(tried)) == len(tried), "nothing is tried twice"
    assert found <= limit
    if limit >= cap:
        assert found == cap
    elif limit == 0:
        assert found == 0
    else:
        assert found in tried
        assert limit - found < grain
        assert found >= 1
    assert len(tried) <= 2 * math.log2(max(cap, start)) + 4


@given(needed=st.sets(st.integers(0, 15)), count=st.integers(0, 16))
def test_fewest_finds_what_is_needed(needed, count):
    items = list(range(count))
    found = fewest(items, lambda some: needed <= set(some))
    assert found == (sorted(needed) if needed <= set(items) else None)


@given(st.sets(st.sets(st.integers(0, 7), min_size=1, max_size=3).map(frozenset), min_size=1, max_size=4))
def test_fewest_leaves_nothing_that_could_go(ways):
    """Several selections may do; the one found does, and none of its members can be left out."""

    def good(some):
        return any(way <= set(some) for way in ways)

    found = fewest(list(range(8)), good)
    assert good(found)
    assert not any(good(found[:i] + found[i + 1 :]) for i in range(len(found)))


@given(st.integers(0, 24), st.integers(0, 24))
def test_largest_clean_scale(start, limit):
    tried = []

    def skips(scale):
        tried.append(scale)
        return int(scale > 2.0**limit)

    assert largest_clean(skips, 2.0**start) == 2.0 ** min(start, limit)
    assert tried == sorted(tried, reverse=True)


# -- scores ------------------------------------------------------------------------------------------------------------


def macro(labels, predicted):
    """Precision, recall and F1 from the confusion matrix, class by class."""
    classes = sorted(set(labels) | set(predicted))
    matrix = {(a, b): 0 for a in classes for b in classes}
    for pair in zip(labels, predicted, strict=True):
        matrix[pair] += 1
    rows = []
    for c in classes:
        hit = matrix[c, c]
        said = sum(matrix[a, c] for a in classes)
        there = sum(matrix[c, b] for b in classes)
        p = hit / said if said else 0.0
        r = hit / there if there else 0.0
        rows.append((p, r, 2 * p * r / (p + r) if p + r else 0.0))
    return [sum(column) / len(classes) for column in zip(*rows, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_scores_follow_the_confusion_matrix(pairs):
    labels, predicted = map(list, zip(*pairs, strict=True))
    found = scores(labels, predicted)
    assert found.accuracy == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert [found.precision, found.recall, found.f1] == pytest.approx(macro(labels, predicted))


def test_scores_of_one_known_case():
    found = scores([0, 0, 1, 1, 2], [0, 1, 1, 1, 1])
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.precision == pytest.approx((1 + 2 / 4 + 0) / 3)
    assert found.recall == pytest.approx((1 / 2 + 1 + 0) / 3)


# -- kernels -----------------------------------------------------------------------------------------------------------

TENSOR = [
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
    "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x32_warpgroupsize1x1x1_g1_execute_"
    "segment_k_off_kernel__5x_cudnn",
    "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x16_stage1_"
    "warpsize4x1x1_g1_tensor16x8x16_aligna2_alignc8_execute_kernel__5x_cudnn",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn",
    "ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn",
    "turing_fp16_s1688gemm_fp16_64x64_sliced1x2_ldg8_f2f_tn",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1",
    "turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT",
    "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align2>(cutlass_80_wmma_"
    "tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align2::Params)",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(...)",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16_128x128x64_2x1x1_0_tnt_align8_warpspecialized",
    "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS6_4warp11MmaTensorOpINS7_ILi32E",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t>>",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
]
PLAIN = [
    "volta_sgemm_128x64_nn",
    "ampere_sgemm_32x128_tn",
    "maxwell_sgemm_fp16_128x64_tn",
    "cutlass_80_simt_sgemm_128x64_8x5_nn_align1",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x128_8x5_tn_align1>(...)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__"
    "5x_cublas",
    "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int, int)",
    "ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt",
    "void wgrad_alg0_engine_NHWC<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int, float const*, int, float*)",
    "void convolve_common_engine_float_NHWC<__nv_bfloat16, __nv_bfloat16, 128, 5, 5, 3, 3, 3, true, false>(int, int)",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParamsEx)",
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(at::PackedTensorAccessor)",
    "volta_hgemm_256x128_nt",
]
OTHER = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false>(cublasSplitKParams)",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(cudnn::ops::nchw2nhwc_params_t<float>)",
    "void at::native::im2col_kernel<float>(long, float const*)",
    "Memcpy HtoD (Pinned -> Device)",
    "triton_poi_fused_add_relu_0",
    "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, float, 4, true>",
    "void cask__5x_cudnn::computeOffsetsKernel<false, false>(cask__5x_cudnn::ComputeOffsetsParams)",
]


@pytest.mark.parametrize("name", TENSOR)
def test_kernels_in_tensor_cores(name):
    assert kind(name) == "tensor"


@pytest.mark.parametrize("name", PLAIN)
def test_kernels_without_tensor_cores(name):
    assert kind(name) == "plain"


@pytest.mark.parametrize("name", OTHER)
def test_kernels_that_multiply_nothing(name):
    assert kind(name) is None


@pytest.mark.parametrize("name", ["triton_mm", "triton_tem_fused_addmm_3", "gemm_fusion_dot_12"])
def test_products_of_compilers_are_unknown(name):
    assert kind(name) == "unknown"


def test_the_share_is_of_products_alone():
    found = tensor_core_share({TENSOR[0]: 3.0, PLAIN[0]: 1.0, OTHER[0]: 50.0})
    assert found["share"] == pytest.approx(0.75)
    assert [name for name, _, _ in found["longest"]] == [TENSOR[0], PLAIN[0]]
    assert tensor_core_share({OTHER[0]: 1.0})["share"] is None


# -- turns and ratios --------------------------------------------------------------------------------------------------


def test_turns_alternate_and_a_failed_one_drops_out():
    log, lost = [], []

    def turn(name, rates):
        left = iter(rates)

        def run():
            log.append(name)
            rate = next(left)
            if rate is None:
                raise AmpError("gone")
            return rate

        return run

    found = in_turns({"a": turn("a", [1.0] * 4), "b": turn("b", [2.0, None]), "c": turn("c", [3.0] * 4)}, 4,
                     lambda key, error: lost.append((key, str(error))))  # fmt: skip
    assert "".join(log) == "abc" + "cba" + "ac" + "ca"
    assert found == {"a": [1.0] * 4, "c": [3.0] * 4}
    assert lost == [("b", "gone")]


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=1, max_size=9))
def test_a_ratio_is_that_of_rounds(pairs):
    mine, theirs = zip(*pairs, strict=True)
    found = ratio(mine, theirs)
    each = sorted(a / b for a, b in pairs)
    assert (found.low, found.high) == (each[0], each[-1])
    assert found.value == pytest.approx(float(np.median(each)))
    assert found.beyond_noise == (each[0] > 1 or each[-1] < 1)


# -- rows and advice ---------------------------------------------------------------------------------------------------


def group(*rows, **options):
    """Finished rows from (policy, rates, accuracy) under one backend, with ratios."""
    made = []
    for policy, rates, accuracy in rows:
        row = Row(Task("torch", policy, "default", 64), "done", batch_size=64, rates=rates, accuracy=accuracy, loss=0.1)
        row.test_images, row.peak_memory = options.get("test_images", 10000), options.get("memory", {}).get(policy, 100)
        made.append(row)
    set_ratios(made)
    return made


BASE = ("float32", [100.0, 110.0], 0.9)


def test_ratios_are_to_float32_of_the_same_round():
    base, other = group(BASE, ("mixed_bfloat16", [200.0, 330.0], 0.9))
    assert (base.ratio, other.ratio, other.ratio_low, other.ratio_high) == (1.0, 2.5, 2.0, 3.0)
    assert other.baseline == "float32, batch size 64"
    (alone,) = group(("mixed_bfloat16", [1.0], 0.9))
    assert alone.ratio is None


FASTER = "mixed_bfloat16: 1.9x faster than float32, accuracy -0.1 points: use it"
WORSE = "accuracy -10.0 points: too much is lost, stay with float32 or see unifiedamp tune"
SLOWER = "mixed_bfloat16: 0.50x the speed of float32, accuracy +0.0 points: stay with float32"
NOISE, SMALLER = "no gain beyond the noise, stay with float32", "use it where memory is short (40% less)"
FEW = "2 rounds are too few to be sure, repeat it with --rounds 5 or more"
BF16, FP16 = "mixed_bfloat16", "mixed_float16"


@pytest.mark.parametrize(
    ("rows", "options", "wanted"),
    [
        ([BASE, (BF16, [190.0, 209.0], 0.899)], {}, FASTER),
        ([BASE, (FP16, [190.0, 209.0], 0.8)], {}, WORSE),
        # Of a hundred images, two more or less say nothing.
        ([BASE, (FP16, [190.0, 209.0], 0.88)], {"test_images": 100}, "use it"),
        ([BASE, (FP16, [190.0, 209.0], 0.88)], {"test_images": 10000}, "see unifiedamp tune"),
        ([BASE, (BF16, [50.0, 55.0], 0.9)], {}, SLOWER),
        ([BASE, (BF16, [120.0, 109.0], 0.9)], {}, NOISE),
        ([BASE, (BF16, [110.0, 121.0], 0.9)], {}, FEW),
        ([("float32", [100.0] * 5, 0.9), (BF16, [110.0] * 5, 0.9)], {}, "use it"),
        ([BASE, (BF16, [120.0, 109.0], 0.9)], {"memory": {BF16: 60}}, SMALLER),
        ([BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.9)], {}, "points: use it"),
        ([BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.7)], {}, "points: use it"),
        ([BASE], {}, "nothing beside float32 was run"),
        ([(BF16, [150.0], 0.9)], {}, "no finished float32 row to compare with"),
    ],
)
def test_advice_follows_from_the_figures(rows, options, wanted):
    (said,) = advise(group(*rows, **options))
    assert said.startswith("torch, compile default, batch size 64: ")
    assert said.endswith(wanted)


def test_advice_names_the_fastest_that_is_good_enough():
    (said,) = advise(group(BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.9)))
    assert said.endswith("mixed_float16: 1.8x faster than float32, accuracy +0.0 points: use it")
    (said,) = advise(group(BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.7)))
    assert said.endswith("mixed_bfloat16: 1.5x faster than float32, accuracy +0.0 points: use it")


def test_advice_where_the_others_did_not_run():
    rows = group(BASE)
    rows += [Row(Task("torch", "mixed_float16", "default", 64), "refused", "no float16 here")]
    rows += [Row(Task("torch", "mixed_bfloat16", "default", 64), "failed", "out of memory")]
    (said,) = advise(rows)
    assert said.endswith("stay with float32: mixed_float16 cannot run here; mixed_bfloat16 failed")


def test_a_group_for_each_backend_mode_and_size():
    found = tasks(["a", "b"], ["float32", "mixed_float16"], ["off", "max"], [8, 0])
    assert len(found) == 8
    assert all([task.policy for task in each] == ["float32", "mixed_float16"] for each in found)
    assert len({each[0].group for each in found}) == 8


# -- parity ------------------------------------------------------------------------------------------------------------


def trace(scale=1.0, fault=None, size=1.0):
    """Three steps of four places each; the value at ``fault`` (step, place) is off by ``scale``."""
    rng = np.random.default_rng(0)
    entries = []
    for step, place in itertools.product((1, 2, 3), range(4)):
        value = rng.standard_normal(50)
        if (step, place) == fault:
            value = value * scale
        entries.append(parity.Entry(step, f"layer{place}", "gradient", place + 1, 0.0, 0.0, value * size))
    return entries


@pytest.mark.parametrize(("dtype", "rounding", "off"), [("float32", 1e-7, 1e-3), ("bfloat16", 4e-3, 0.5)])
def test_the_first_place_beyond_rounding_is_named(dtype, rounding, off):
    verdict = parity.judge(trace(), trace(1 + off, (2, 1)), dtype, 256)
    assert (verdict.parted.step, verdict.parted.layer) == (2, "layer1")
    assert verdict.parted.distance == pytest.approx(off / (1 + off), rel=1e-6)
    fine = parity.judge(trace(), trace(1 + rounding, (2, 1)), dtype, 256)
    assert fine.parted is None
    assert (fine.closest.step, fine.closest.layer) == (2, "layer1")


def test_what_a_coarse_dtype_explains_a_fine_one_does_not():
    pair = trace(), trace(1.003, (1, 0))
    assert parity.judge(*pair, "bfloat16", 256).parted is None
    assert parity.judge(*pair, "float16", 256).parted is None
    assert parity.judge(*pair, "float32", 256).parted.layer == "layer0"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_on_one_side_parts(bad):
    assert parity.judge(trace(), trace(bad, (3, 2)), "bfloat16", 256).parted.step == 3
    assert parity.judge(trace(bad, (3, 2)), trace(bad, (3, 2)), "bfloat16", 256).parted is None


def test_zeros_agree_and_counts_are_exact():
    assert parity.judge(trace(size=0.0), trace(size=0.0), "float32", 1).parted is None
    one, other = (parity.Entry(1, "optimizer", "applied steps", 0, 0.0, 0.0, np.array([n])) for n in (1.0, 0.0))
    assert parity.judge([one], [other], "bfloat16", 1).parted.what == "applied steps"
