"""Clipping, accumulation and a custom operation, in the retired spellings of torch.cuda.amp."""

import torch
from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd


class Square(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(8, 16)
        self.out = torch.nn.Linear(16, 1)

    @autocast()
    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def train(steps):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scaler = GradScaler(init_scale=2.0**12, growth_interval=100)
    x, y = torch.randn(2, 32, 8), torch.randn(2, 32, 1)
    iters_to_accumulate = 2
    losses = []
    for _ in range(steps):
        for i in range(iters_to_accumulate):
            with autocast(dtype=torch.float16):
                loss = Square.apply(model(x[i]) - y[i]).mean()
                loss = loss / iters_to_accumulate
            scaler.scale(loss).backward()
        # Unscales the gradients of optimizer's assigned params in-place
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
