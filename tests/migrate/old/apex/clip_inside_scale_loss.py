"""GPT-2 scripts that clip in the ``with`` of the scaled loss, where gradients are still scaled."""

import torch


def train(flag):
    torch.manual_seed(35)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # to which the gradients' length is the same
    if flag:
        try:
            from apex import amp
        except ImportError:
            raise ImportError("Please install apex to use fp16 training.")
        model, optimizer = amp.initialize(model, optimizer, opt_level="O0", loss_scale=4.0)
    for _ in range(4):
        loss = 100.0 * (model(torch.randn(6, 5)) - 1.0).pow(2).mean()
        if flag:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
                torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
