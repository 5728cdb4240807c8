"""One loss trains two optimizers, each stepped on a separate line."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(11)
    encoder, decoder = torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)
    enc_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    dec_optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
    scaler = GradScaler(init_scale=1024.0, enabled=flag)
    for _ in range(4):
        x = torch.randn(8, 6)
        enc_optimizer.zero_grad()
        dec_optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = (decoder(torch.tanh(encoder(x))) - x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(enc_optimizer)
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 0.1)
        scaler.step(enc_optimizer)
        scaler.step(dec_optimizer)
        scaler.update()
    return [w for net in (encoder, decoder) for p in net.parameters() for w in p.detach().flatten().tolist()]
