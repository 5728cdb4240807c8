"""``from unifiedamp.compat import apex as amp``: NVIDIA Apex's removed ``apex.amp``, over sessions on torch.

The names, their positional order, their defaults and the checkpoint layout are Apex's. ``docs/compat-apex.md`` says
what each call is here, what its native form is, and what differs.
"""

from __future__ import annotations

from typing import NoReturn

from . import lists
from .checkpoint import load_state_dict, state_dict
from .forward import disable_casts
from .functions import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .initialize import initialize
from .larc import LARC
from .scaling import master_params, scale_loss
from .state import amp_state as _amp_state

__all__ = [
    "LARC",
    "_amp_state",
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "lists",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]

_OLD = {
    "init": "Apex dropped this first interface in 2019: call initialize(model, optimizer, opt_level='O1')",
    "AmpHandle": "Apex dropped this first interface in 2019: call initialize and scale_loss",
    "NoOpHandle": "pass enabled=False to initialize",
    "FP16_Optimizer": "call initialize(model, optimizer, opt_level='O2'), which keeps float32 master weights",
    "amp": "this module is what apex.amp was: write 'from unifiedamp.compat import apex as amp'",
    "optimizers": "only apex.amp was removed from Apex; apex.optimizers is still there, and torch has fused=True",
    "parallel": "only apex.amp was removed from Apex; use torch.nn.parallel.DistributedDataParallel",
    "GradScaler": "Apex had none: scale_loss scales; torch's is torch.amp.GradScaler",
    "autocast": "Apex had none: initialize patches the model; the native form is unifiedamp.Amp(...).autocast()",
}


def __getattr__(name: str) -> NoReturn:
    hint = _OLD.get(name)
    raise AttributeError(f"unifiedamp.compat.apex has no {name!r}" + (f": {hint}" if hint else ""))
