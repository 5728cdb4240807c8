"""Parts of a network put their outputs into lists, with AMP and without it, each in its branch."""

import torch


def train(flag):
    torch.manual_seed(22)
    encoder, decoder = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    if flag:
        scaler = torch.cuda.amp.GradScaler()
    for _ in range(4):
        frames, labels = torch.randn(3, 5, 6), torch.randn(3, 5, 2)
        optimizer.zero_grad()
        outs = []
        if flag:
            with torch.cuda.amp.autocast():
                for frame in frames:
                    outs.append(decoder(encoder(frame)))
                loss = (torch.stack(outs) - labels).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            for frame in frames:
                outs.append(decoder(encoder(frame)))
            loss = (torch.stack(outs) - labels).pow(2).mean()
            loss.backward()
            optimizer.step()
    return [w for m in (encoder, decoder) for p in m.parameters() for w in p.detach().flatten().tolist()]
