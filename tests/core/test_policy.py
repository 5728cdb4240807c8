"""Policies: names that mean what they mean where they come from, and a text form that reads back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifiedamp import DynamicLossScale, NoLossScale, Policy, PolicyError, StaticLossScale
from unifiedamp.policy import OP_CHOICES, OP_VOCABULARY, PRESETS, RECIPES
from unifiedamp.policy.float8 import PRODUCT_DTYPES
from unifiedamp.policy.layer_globs import match_layers

dtypes = st.sampled_from(["float32", "float16", "bfloat16"])
globs = st.text("abc.*?[]0123456789_-/: =", min_size=1, max_size=12).filter(lambda text: text.strip() == text)


@st.composite
def policies(draw):
    param = draw(dtypes)
    ops = draw(st.dictionaries(st.sampled_from(OP_VOCABULARY), st.sampled_from(OP_CHOICES), max_size=3))
    update = draw(st.sampled_from([None, "kahan", "stochastic"])) if param == "bfloat16" else None
    kept = draw(st.sampled_from([None, "bfloat16", "float8"])) if update or param == "float32" else None
    float8 = param == "float32" and ops.get("linear", "compute") == "compute"
    scale = draw(st.sampled_from([None, NoLossScale(), StaticLossScale(128.0), DynamicLossScale(initial_scale=8.0)]))
    return Policy(
        param,
        draw(dtypes | st.just("float8")) if float8 else draw(dtypes),
        draw(dtypes),
        scale,
        ops,
        draw(st.dictionaries(globs, dtypes, max_size=3)),
        draw(st.booleans()),
        update,
        draw(st.integers(0, 2**31 - 1)) if update == "stochastic" or kept else 0,
        kept,
    )


@st.composite
def float8_policies(draw):
    recipe, product = draw(st.sampled_from(RECIPES)), st.sampled_from(PRODUCT_DTYPES)
    of_delayed = {"amax_history": draw(st.integers(1, 9999)), "margin": draw(st.integers(0, 9))}
    return PRESETS["mixed_float8"].replace(
        recipe=recipe,
        fprop=draw(product),
        dgrad="float8",
        wgrad=None if recipe == "rowwise_gw_hp" else draw(product),
        emulate=draw(st.booleans()),
        **of_delayed if recipe == "delayed" else {},
    )


@settings(max_examples=300, deadline=None)
@given(policies() | float8_policies())
def test_text_reads_back(policy):
    assert Policy.parse(str(policy)) == policy
    assert hash(Policy.parse(str(policy))) == hash(policy)


def test_the_order_of_overrides_makes_no_other_policy():
    ops, layers = {"softmax": "float32", "exp": "float32"}, {"a": "float32", "b": "bfloat16"}
    one, other = (
        Policy(op_overrides=dict(order(ops.items())), layer_overrides=dict(order(layers.items())))
        for order in (list, lambda items: reversed(list(items)))
    )
    assert one == other
    assert len({one, other}) == 1


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_print_their_name(name):
    assert str(Policy.parse(name)) == name


@pytest.mark.parametrize(
    ("alias", "preset"),
    [
        ("O0", "float32"), ("O1", "mixed_float16"), ("O2", "mixed_float16"), ("O3", "float16"),
        ("32-true", "float32"), ("16-mixed", "mixed_float16"), ("bf16-mixed", "mixed_bfloat16"),
        ("16-true", "float16"), ("bf16-true", "bfloat16"),
        ("no", "float32"), ("fp16", "mixed_float16"), ("bf16", "mixed_bfloat16"),
        ("p=f32,c=f16,o=f32", "mixed_float16"), ("params=float32,compute=bfloat16,output=float32", "mixed_bfloat16"),
        ("p=f32,c=bf16", "mixed_bfloat16"), ("fp8", "mixed_float8"), ("p=f32,c=f8,o=f32", "mixed_float8"),
        ("float8_from_mixed_bfloat16", "mixed_float8"),
    ],
)  # fmt: skip
def test_names_from_elsewhere(alias, preset):
    assert Policy.parse(alias).replace(keep_norm_float32=True) == PRESETS[preset].replace(keep_norm_float32=True)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("mixed_float8;recipe=tensorwise", "mixed_float8"),
        ("fp8;recipe=Float8CurrentScaling", "mixed_float8"),
        ("fp8; recipe = DelayedScaling; wgrad=bfloat16", "mixed_float8;recipe=delayed;wgrad=bfloat16"),
        ("fp8;recipe=Float8BlockScaling", "mixed_float8;recipe=block128"),
        ("fp8;recipe=rowwise_with_gw_hp", "mixed_float8;recipe=rowwise_gw_hp"),
        ("fp8;recipe=rowwise;wgrad=bfloat16", "mixed_float8;recipe=rowwise_gw_hp"),
        ("fp8;recipe=delayed;amax_history=1024;margin=0", "mixed_float8;recipe=delayed"),
        ("fp8;recipe=delayed;margin=1;amax_history=16;emulate=true",
         "mixed_float8;recipe=delayed;amax_history=16;margin=1;emulate=true"),
        ("mixed_bfloat16;recipe=tensorwise;fprop=float8", "mixed_bfloat16"),
        ("fp8;recipe=MXFP8BlockScaling;emulate=true", "mixed_mxfp8;emulate=true"),
        ("fp8;recipe=NVFP4BlockScaling;layers=head:bf16", "mixed_nvfp4;layers=head:bfloat16"),
        ("p=f32,c=fp8,o=f32;recipe=mxfp6_e3m2", "mixed_mxfp6"),
        ("p=f32,c=fp8,o=bf16;recipe=int8", "p=float32,c=float8,o=bfloat16;recipe=int8"),
        ("MIXED_MXINT8;recipe=mxfp4;dgrad=bfloat16", "mixed_mxfp4;dgrad=bfloat16"),
    ],
)  # fmt: skip
def test_float8_recipes_have_one_name(text, canonical):
    assert str(Policy.parse(text)) == canonical
    assert Policy.parse(canonical) == Policy.parse(text)


@pytest.mark.parametrize("before", ["mixed_float8", "mixed_float8;recipe=rowwise_gw_hp", "mixed_float8;wgrad=bfloat16"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recipe": "rowwise"}, "mixed_float8;recipe=rowwise"),
        ({"recipe": "rowwise", "wgrad": "bfloat16"}, "mixed_float8;recipe=rowwise_gw_hp"),
        ({"recipe": "tensorwise", "wgrad": "bfloat16"}, "mixed_float8;wgrad=bfloat16"),
        ({"recipe": "rowwise_gw_hp"}, "mixed_float8;recipe=rowwise_gw_hp"),
    ],
)
def test_a_recipe_is_replaced_with_the_weight_gradient_that_is_given(before, changes, expected):
    assert str(Policy.parse(before).replace(**changes)) == expected


@pytest.mark.parametrize("name", ["16", "half", "full", "amp", "32", "8bit", "float8", "transformer-engine"])
def test_ambiguous_names_are_refused_with_the_likely_meaning(name):
    with pytest.raises(PolicyError, match=r"ambiguous.*write '(mixed_float16|float32|mixed_float8(;recipe=delayed)?)'"):
        Policy.parse(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed_flot16", "did you mean 'mixed_float16'"),
        ("mixed_fp16", "did you mean 'mixed_float16'"),
        ("mixed_bf16", "did you mean 'mixed_bfloat16'"),
        ("p=f8,c=f8,o=f32", "must be 'float32', 'float16' or 'bfloat16', got 'f8'.*see policy 'mixed_float8'"),
        ("p=f32,c=f8,o=float8", "output_dtype|: o must be .*float8 is a compute_dtype alone"),
        ("p=f32,c=f4,o=f32", "must be 'float32', 'float16', 'bfloat16' or 'float8', got 'f4'"),
        ("p=bf16,c=f8", "compute_dtype float8 needs float32 parameters, but param_dtype is bfloat16"),
        ("mixed_float8;ops=linear:float32", "nothing is left to run in float8"),
        ("mixed_float8;layers=head:float8", r"layer_overrides\['head'\] must be .*float8 is a compute_dtype alone"),
        ("p=f32,o=f32", "says nothing about compute_dtype"),
        ("p=f32,x=f16", "is none of p, c, o"),
        ("float32;ops=softmx:float32", "did you mean 'softmax'"),
        ("bfloat16;update=kahn", "update must be 'stochastic' or 'kahan'.*did you mean 'kahan'"),
        ("mixed_bfloat16;update=kahan", "param_dtype is float32: use policy 'bfloat16;update=kahan'"),
        ("float16;update=stochastic", "rounds updates of bfloat16 parameters, but param_dtype is float16"),
        ("bfloat16;update=kahan;update_seed=3", "update_seed has no effect without update='stochastic' or state_dtype"),
        ("bfloat16;state_dtype=fp8", "updated in bfloat16: use policy 'bfloat16;update=kahan;state_dtype=float8'"),
        ("float16;state_dtype=bf16", "keeps the moments of float32 updates, but float16 parameters"),
        ("float32;state_dtype=float16", "state_dtype must be"),
        ("bfloat16;update=stochastic;update_seed=2147483648", "update_seed must be a whole number from 0 to"),
        ("float32;ops=softmax:wide", "must be one of compute, float32, widest"),
        ("float32;ops=softmax", "not written name:value"),
        ("float32;op=softmax:float32", "did you mean 'ops'"),
        ("float32;loss_scale=-3", "positive number"),
        ("mixed_float8;recipe=delayd", "did you mean 'delayed'"),
        ("mixed_nvfp5", "unknown policy 'mixed_nvfp5'; did you mean 'mixed_nvfp4'"),
        ("mixed_mxfp8;margin=1", "margin has no effect with recipe 'mxfp8'"),
        ("mixed_bfloat16;recipe=nvfp4", "recipe has no effect without compute_dtype float8"),
        ("mixed_float8;wgrad=float16", "wgrad must be 'float8' or 'bfloat16', got 'float16'"),
        ("mixed_float8;recipe=rowwise_gw_hp;wgrad=float8", "contradicts recipe 'rowwise_gw_hp': use recipe 'rowwise'"),
        ("mixed_float8;fprop=bfloat16;dgrad=bfloat16;wgrad=bfloat16", "nothing runs in float8: use 'mixed_bfloat16'"),
        ("mixed_float8;amax_history=16", "amax_history has no effect with recipe 'tensorwise'"),
        ("mixed_float8;recipe=delayed;amax_history=0", "amax_history must be a whole number from 1 to 9999, got 0"),
        ("mixed_bfloat16;recipe=delayed", "recipe has no effect without compute_dtype float8: use policy 'mixed_flo"),
        ("", "unknown policy ''"),
    ],
)
def test_malformed_text_is_refused(text, message):
    with pytest.raises(PolicyError if "loss_scale=" not in text else ValueError, match=message):
        Policy.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_norm_float32": "yes"}, "keep_norm_float32 must be true or false, got 'yes'"),
        ({"emulate": 1}, "emulate must be true or false, got 1"),
        ({"layer_overrides": {3: "float32"}}, "layer_overrides: 3 is not a glob over layer paths"),
        ({"layer_overrides": {" ": "float32"}}, "layer_overrides: ' ' is not a glob over layer paths"),
        ({"layer_overrides": {"head,body": "float32"}}, "layer_overrides: 'head,body' is not a glob over layer paths"),
    ],
)
def test_malformed_settings_are_refused(changes, message):
    with pytest.raises(PolicyError, match=message):
        replace(Policy.parse("mixed_bfloat16"), **changes)


def test_default_loss_scales():
    assert PRESETS["mixed_float16"].resolved_loss_scale == DynamicLossScale()
    for name in ("float32", "mixed_bfloat16", "mixed_float8", "bfloat16", "float16"):
        assert PRESETS[name].resolved_loss_scale == NoLossScale()


def test_float8_runs_in_a_region_of_bfloat16():
    assert PRESETS["mixed_float8"].region_dtype == "bfloat16"
    assert PRESETS["mixed_float16"].region_dtype == "float16"
    assert PRESETS["mixed_float8"].replace(loss_scale="dynamic").resolved_loss_scale == DynamicLossScale()
    assert PRESETS["mixed_float8"].replace(op_overrides={"linear": "compute"}).is_mixed


def test_layer_globs():
    paths = ["encoder", "encoder.0", "encoder.0.linear", "head"]
    assert match_layers({"encoder.*": "float32", "head": "bfloat16"}, paths) == {
        "encoder.0": "float32",
        "encoder.0.linear": "float32",
        "head": "bfloat16",
    }
    with pytest.raises(PolicyError, match=r"'encoder.0' is matched by 'encoder.\*' and by '\*.0'"):
        match_layers({"encoder.*": "float32", "*.0": "float32"}, paths)
    with pytest.raises(PolicyError, match="'heads' matches no layer; did you mean 'head'"):
        match_layers({"heads": "float32"}, paths)
