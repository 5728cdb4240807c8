"""What Apex calls things, and what it is told."""

from __future__ import annotations

import libcst as cst

from ..source import Source

NAME = "apex.amp"
OLD_IMPORTS = ("apex.amp", "apex")
SAME = ("state_dict", "load_state_dict")
IN_LOOPS = ("scale_loss", "master_params", *SAME)
HANDS = {
    "half_function": "decorate the function with `ua.amp_function(cast_inputs=\"compute\")`",
    "float_function": "decorate the function with `ua.amp_function(cast_inputs=\"float32\")`",
    "promote_function": "decorate the function with `ua.amp_function`",
    "disable_casts": "write `with amp.autocast(enabled=False):`",
}  # fmt: skip
CLIP = "torch.nn.utils.clip_grad_norm_"


def calls_of(source: Source, *names: str) -> list[cst.Call]:
    """Return the calls of these functions of ``apex.amp``, function by function."""
    return [call for name in names for call in source.calls(f"apex.amp.{name}")]
