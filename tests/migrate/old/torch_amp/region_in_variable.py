"""A small language model's script: one region in a variable, whose dtype is chosen by name, and accumulation."""

from contextlib import nullcontext

import torch


def train(flag):
    device_type = "cuda"
    dtype = "bfloat16" if flag else "float32"
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
    torch.manual_seed(15)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    grad_clip = 1.0
    for _ in range(3):
        for _micro_step in range(2):
            x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
            with ctx:
                logits = model(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                loss = loss / 2
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
