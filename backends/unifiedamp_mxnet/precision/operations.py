"""Which operator runs in which precision: MXNet's own lists, and the table from the neutral vocabulary to its names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unifiedamp.backend import Policy, errors

from ..mxnet_api import amp_lists, op_handle

COMPUTE, COPIED, FLOAT32, WIDEST = "compute", "copied", "float32", "widest"
"""Rules: cast inputs to the compute dtype, the same with copies of parameters, to float32, or to the widest of them."""
KEEP, REFUSED = "keep", "refused"
"""Rules: leave the inputs; refuse the call."""

Target = str | tuple[str, str, str]
"""An operator, or (operator, attribute, value) for one of the functions that an operator holds."""

VOCABULARY: Mapping[str, tuple[Target, ...]] = {
    "matmul": ("dot", "batch_dot", "_npi_matmul", "_npi_dot", "_np_dot", "_linalg_gemm", "_linalg_gemm2",
               "_npi_tensordot", "_npi_tensordot_int_axes", "_npi_einsum"),
    "linear": ("FullyConnected",),
    "conv": ("Convolution",),
    "conv_transpose": ("Deconvolution",),
    "embedding": ("Embedding",),
    "rnn": ("RNN",),
    "softmax": ("softmax", "SoftmaxActivation", "softmin"),
    "log_softmax": ("log_softmax",),
    "layer_norm": ("LayerNorm",),
    "batch_norm": ("BatchNorm", "BatchNormWithReLU", "_contrib_SyncBatchNorm"),
    "group_norm": ("GroupNorm",),
    "relu": ("relu", "_npx_relu", ("Activation", "act_type", "relu")),
    "gelu": (("LeakyReLU", "act_type", "gelu"),),
    "sigmoid": ("sigmoid", "_npx_sigmoid", ("Activation", "act_type", "sigmoid")),
    "tanh": ("tanh", "_npi_tanh", ("Activation", "act_type", "tanh")),
    "softplus": (("Activation", "act_type", "softrelu"),),
    "exp": ("exp", "_npi_exp"),
    "log": ("log", "_npi_log"),
    "pow": ("_power", "_power_scalar", "broadcast_power", "_npi_power", "_npi_power_scalar"),
    "rsqrt": ("rsqrt",),
    "sum": ("sum", "_np_sum", "_npi_sum"),
    "mean": ("mean", "_npi_mean"),
    "prod": ("prod", "_np_prod", "_npi_prod"),
    "cumsum": ("_np_cumsum", "_npi_cumsum"),
    "norm": ("norm", "_npi_norm"),
    "cross_entropy": ("softmax_cross_entropy",),
}  # fmt: skip
"""The neutral vocabulary → MXNet's operators, of both versions; a name that one lacks is left out there."""

PRODUCTS = ("matmul", "linear", "conv", "conv_transpose", "rnn")
"""Operations that have no float16 kernel on CPU."""

COMPOSED = {
    "attention": "made of batch_dot and softmax: name 'matmul' and 'softmax'",
    "silu": "made of sigmoid and a product: name 'sigmoid'",
    "mse_loss": "gluon.loss.L2Loss is made of square and mean: name 'mean'",
    "l1_loss": "gluon.loss.L1Loss is made of abs and mean: name 'mean'",
}
"""Names in the vocabulary that are no operator of MXNet → what to name instead."""

BFLOAT16_KERNELS = frozenset(
    {"linear", "conv", "batch_norm", "relu", "gelu", "sigmoid", "tanh", "softplus", "softmax", "log_softmax"}
)
"""Words that may be set to "compute" under bfloat16: MXNet's CPU kernels for them take it, forward and backward."""

NUMPY_BFLOAT16: Mapping[str, str] = {
    "_npx_relu": KEEP, "_npi_square": KEEP, "_npi_absolute": KEEP,
    "_npi_add": WIDEST, "_npi_subtract": WIDEST, "_npi_multiply": WIDEST,
    **{str(name): FLOAT32 for name in VOCABULARY["matmul"]},
}  # fmt: skip
"""What MXNet's bfloat16 lists get wrong or leave out: MXNet 2's numpy operators that have a kernel for it, and matrix
products, listed as "widest", that find none for two bfloat16 inputs."""

NO_BFLOAT16 = frozenset({"_npi_tanh"})
"""Operators of the vocabulary that lack the kernel which their namesakes have."""

FLOAT32_FUNCTIONS = {
    "float16": (("LeakyReLU", "act_type", "prelu"),),
    "bfloat16": (("LeakyReLU", "act_type", "prelu"), ("Activation", "act_type", "softsign")),
}
"""What MXNet's lists leave out: ``prelu`` has a float32 parameter, ``softsign`` no kernel for bfloat16."""

FIRST_INPUT_ONLY = (
    "BatchNorm", "BatchNorm_v1", "BatchNormWithReLU", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU",
)  # fmt: skip
"""Operators whose parameters and running statistics stay as they are: they are float32, or are written to."""

LOSS_OUTPUTS = (
    "SoftmaxOutput",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "MakeLoss",
)
"""Operators that make their own gradient: the loss scale does not reach it."""

UNTOUCHED = ("amp_cast", "amp_multicast", "all_finite", "multi_all_finite", "_copyto", "reset_arrays", "_CachedOp")
"""Operators whose inputs are never cast."""


@dataclass
class ByAttribute:
    """A rule that depends on an operator's attribute (``Activation`` is several functions).

    Attributes:
        attribute: its name.
        rules: value → rule; "None" stands for a call without the attribute.
        otherwise: the rule for other values.
        place: where a packed call, which names no attributes, has it; None where the values tell.
    """

    attribute: str
    rules: dict[str, str] = field(default_factory=dict)
    otherwise: str = KEEP
    place: int | None = None

    def choose_packed(self, args: Sequence[object]) -> str:
        """Return the rule for a packed call."""
        if self.place is not None:
            return self.choose(args[self.place])
        return next((self.rules[arg] for arg in args if type(arg) is str and arg in self.rules), self.otherwise)

    def choose(self, value: object) -> str:
        """Return the rule for this value of the attribute."""
        return self.rules.get(str(value), self.otherwise)


Rule = str | ByAttribute
Rules = dict[int, Rule]


def build_rules(policy: Policy, scaled: bool) -> tuple[Rules, str]:
    """Return handle → rule for a policy, and the rule of every operator without one."""
    low = policy.region_dtype
    in_float32 = low == "float32" or (policy.emulate and low == "bfloat16")
    rules = {} if in_float32 else dict(_listed(low))
    if policy.param_dtype == "bfloat16" and not in_float32:
        # Its kernel takes bfloat16; in float32, MXNet cannot differentiate by a weight behind a cast.
        rules.update(dict.fromkeys(_handles(map(str, VOCABULARY["conv_transpose"])), COMPUTE))
    for word, choice in policy.op_overrides.items():
        for target in VOCABULARY[word]:
            if in_float32 or not (choice == COMPUTE and low == "bfloat16" and target in NO_BFLOAT16):
                _override(rules, target, choice)
    if policy.emulate and low != "float32":
        # MXNet's lists give matrix products the widest dtype of their inputs, which a traced graph does not know.
        words = [word for word in PRODUCTS if word not in policy.op_overrides]
        rules.update(dict.fromkeys(_handles(str(name) for word in words for name in VOCABULARY[word]), COMPUTE))
    convolution = op_handle("Convolution")
    if low == "bfloat16" and not in_float32 and convolution is not None and rules.get(convolution) == COMPUTE:
        # One that has run in float32 keeps its weight in a layout that oneDNN cannot cast if there are groups.
        rules[convolution] = ByAttribute("num_group", {"1": COMPUTE, "None": COMPUTE}, COPIED, place=-6)
    if scaled:
        rules.update(dict.fromkeys(_handles(LOSS_OUTPUTS), REFUSED))
    # Few CPU kernels take bfloat16: whatever MXNet's lists do not name gets float32, or it would fail.
    return rules, FLOAT32 if low == "bfloat16" and not in_float32 else KEEP


def replace_lists(
    rules: Rules,
    compute: Iterable[str] | None,
    float32: Iterable[str] | None,
    conditional: Iterable[tuple[str, str, Iterable[str]]] | None,
) -> Rules:
    """Return rules with these lists of operator names in place of MXNet's; None keeps MXNet's list.

    Args:
        rules: the rules to change.
        compute, float32: operators that run in the compute dtype, and in float32.
        conditional: (operator, attribute, values of it that make the operator run in float32).

    Raises:
        ConfigError: MXNet has no operator of that name.
    """
    changed = dict(rules)
    for names, rule in ((compute, COMPUTE), (float32, FLOAT32)):
        if names is not None:
            changed = {handle: one for handle, one in changed.items() if one != rule}
            changed.update(dict.fromkeys(map(_known, names), rule))
    if conditional is not None:
        changed = {handle: one for handle, one in changed.items() if not isinstance(one, ByAttribute)}
        for name, attribute, values in conditional:
            changed[_known(name)] = ByAttribute(attribute, dict.fromkeys(values, FLOAT32))
    return changed


def _known(name: str) -> int:
    handle = op_handle(name)
    if handle is None:
        raise errors.ConfigError(f"amp.init: this MXNet has no operator {name!r}")
    return handle


def refuse_loss_output() -> None:
    """Refuse one of :data:`LOSS_OUTPUTS`.

    Raises:
        UnsupportedError: always.
    """
    raise errors.UnsupportedError(
        f"{', '.join(LOSS_OUTPUTS)}: these operators make their own gradient and ignore the loss scale, so it would be "
        "divided away; use a loss of gluon.loss, or loss_scale='none'"
    )


@functools.cache
def _listed(low: str) -> Mapping[int, Rule]:
    """Return the rules of MXNet's own lists for a compute dtype. A later list wins over an earlier one."""
    lists, short = (amp_lists.symbol_fp16, "FP16") if low == "float16" else (amp_lists.symbol_bf16, "BF16")
    rules: Rules = {}
    ranked = (
        (f"{short}_FP32_FUNCS", KEEP),
        ("FP32_FUNCS", FLOAT32),
        ("WIDEST_TYPE_CASTS", WIDEST),
        (f"{short}_FUNCS", COMPUTE),
    )
    for name, rule in ranked:
        rules.update(dict.fromkeys(_handles(getattr(lists, name)), rule))
    for op, attribute, values in lists.CONDITIONAL_FP32_FUNCS:
        for handle in _handles([op]):
            rules[handle] = ByAttribute(attribute, dict.fromkeys(values, FLOAT32))
    for function in FLOAT32_FUNCTIONS[low]:
        _override(rules, function, FLOAT32)
    if low == "bfloat16":
        for name, rule in {**NUMPY_BFLOAT16, "Concat": WIDEST}.items():
            rules.update(dict.fromkeys(_handles([name]), rule))
    rules.update(dict.fromkeys(_handles(UNTOUCHED), KEEP))
    return rules


def _handles(names: Iterable[str]) -> list[int]:
    # A sparse operator shares its handle with the dense one but not its list, so the dense name decides.
    known = (op_handle(name) for name in names if not name.startswith("_sparse_"))
    return [handle for handle in known if handle is not None]


def _override(rules: Rules, target: Target, choice: str) -> None:
    name = target if isinstance(target, str) else target[0]
    handle = op_handle(name)
    if handle is None:
        return
    if isinstance(target, str):
        rules[handle] = choice
        return
    before = rules.get(handle, KEEP)
    if not isinstance(before, ByAttribute):
        before = ByAttribute(target[1], {}, before)
    rules[handle] = ByAttribute(before.attribute, {**before.rules, target[2]: choice}, before.otherwise)


def check_overrides(policy: Policy) -> None:
    """Refuse an override that MXNet cannot apply.

    Raises:
        UnsupportedError: no operator of that name, or no kernel for the dtype; the message says which.
    """
    for word, choice in policy.op_overrides.items():
        if word not in VOCABULARY:
            reason = COMPOSED.get(word, "it has no such operator")
            raise errors.UnsupportedError(f"op_overrides.{word}: MXNet has no separate operator for it ({reason})")
        native = policy.region_dtype == "bfloat16" and not policy.emulate
        if native and word == "conv_transpose" and policy.param_dtype == "bfloat16":
            _check_transposed(choice)
        elif choice == COMPUTE and native and word not in BFLOAT16_KERNELS:
            raise errors.UnsupportedError(
                f"op_overrides.{word}='compute': MXNet has no bfloat16 CPU kernel for it "
                f"(it has: {', '.join(sorted(BFLOAT16_KERNELS))}); leave it out, or set 'float32'"
            )


def _check_transposed(choice: str) -> None:
    """Refuse another dtype for transposed convolutions than that of their bfloat16 weights."""
    if choice != COMPUTE:
        raise errors.UnsupportedError(
            f"op_overrides.conv_transpose={choice!r}: MXNet cannot differentiate it in float32 by a bfloat16 weight; "
            "keep its layers in float32 by layer_overrides"
        )
