"""Which of a device's kernels multiply in Tensor Cores, by their names."""

from __future__ import annotations

import pytest

from unifiedamp.workloads.compare.kernels import kind, tensor_core_share

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
