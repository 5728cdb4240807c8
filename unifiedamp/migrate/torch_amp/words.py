"""What ``torch.amp`` calls things, and what they are called here."""

from __future__ import annotations

NAME = "torch.amp"
OLD_IMPORTS = ("torch.cuda.amp", "torch.amp", "torch.autocast", "torch.cpu.amp", "torch.GradScaler")
AUTOCAST = (
    "torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast",
    "torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast", "torch.cpu.amp.autocast",
)  # fmt: skip
SCALERS = (
    "torch.amp.GradScaler", "torch.GradScaler", "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
)  # fmt: skip
CUSTOM = tuple(f"torch.{where}.custom_{way}" for where in ("amp", "cuda.amp") for way in ("fwd", "bwd"))
POLICIES = {"torch.float16": "mixed_float16", "torch.half": "mixed_float16", "torch.bfloat16": "mixed_bfloat16"}
SETTINGS = {"init_scale": "initial_scale", "growth_factor": "growth_factor", "backoff_factor": "backoff_factor"}
SETTINGS |= {"growth_interval": "growth_interval"}
GETTERS = {"get_growth_factor": "growth_factor", "get_backoff_factor": "backoff_factor"}
GETTERS |= {"get_growth_interval": "growth_interval", "is_enabled": "enabled"}
CLIPS = {"torch.nn.utils.clip_grad_norm_": ("clip_grad_norm", "max_norm")}
CLIPS |= {"torch.nn.utils.clip_grad_value_": ("clip_grad_value", "clip_value")}
