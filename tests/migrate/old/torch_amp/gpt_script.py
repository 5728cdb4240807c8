"""A language model's script at module level of a function: a context chosen by the dtype, micro-batches, clipping."""

from contextlib import nullcontext

import torch


def train(flag):
    torch.manual_seed(2)
    device_type = "cuda"
    dtype = "float16" if flag else "float32"
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Flatten(), torch.nn.Linear(32, 11))
    scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gradient_accumulation_steps, grad_clip = 2, 1.0
    for iter_num in range(4):
        for micro_step in range(gradient_accumulation_steps):
            x, y = torch.randint(0, 11, (6, 4)), torch.randint(0, 11, (6,))
            with ctx:
                logits = model(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                loss = loss / gradient_accumulation_steps
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
