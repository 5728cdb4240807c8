"""Which libraries ``torch.distributed`` can communicate by here."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .wrapped import AVAILABLE

ABSENT = "not in this build of torch"


def libraries() -> dict[str, str]:
    """Return NCCL, gloo and MPI, each with its version, "available", or why it is not."""
    if not AVAILABLE:
        return dict.fromkeys(("NCCL", "gloo", "MPI"), "this torch was built without torch.distributed")
    return {
        "NCCL": _nccl(),
        "gloo": "available" if dist.is_gloo_available() else ABSENT,
        "MPI": "available" if dist.is_mpi_available() else ABSENT,
    }


def _nccl() -> str:
    if not dist.is_nccl_available():
        return ABSENT
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]  # untyped in torch
    return version if torch.cuda.is_available() else f"{version}, without a GPU"
