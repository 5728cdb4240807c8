"""``amp.register_half_function(torch, "einsum")``: goes where torch's autocast runs the operation so by itself."""

from __future__ import annotations

from ..nodes import argument, literal
from ..work import Work
from .settings import calls_of

_HALF = frozenset(
    {"addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
     "conv_transpose2d", "conv_transpose3d", "einsum", "linear", "matmul", "mm", "mv"}
)  # fmt: skip
_FLOAT = frozenset(
    {"cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist", "exp", "group_norm", "kl_div", "l1_loss",
     "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "mse_loss", "nll_loss", "norm", "pow", "prod",
     "rsqrt", "smooth_l1_loss", "softmax", "softplus", "sum"}
)  # fmt: skip
_DETECTION = frozenset({"nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"})  # kernels for autocast: float32
_MODULES = {
    "torch": {"half": _HALF, "float": _FLOAT},
    "torch.nn.functional": {"half": _HALF, "float": _FLOAT},
    "torchvision.ops": {"half": frozenset[str](), "float": _DETECTION},
}


def drop_registered(work: Work) -> None:
    """Remove the lines that register what torch's autocast does anyway."""
    for kind in ("half", "float"):
        for call in calls_of(work.source, f"register_{kind}_function"):
            module, name = argument(call, "module", 0), argument(call, "name", 1)
            known = _MODULES.get(work.source.meaning(module), {}).get(kind, frozenset()) if module is not None else ()
            if literal(name) in known and work.source.is_alone(call):
                work.edits.statement(work.source.statement(call))
