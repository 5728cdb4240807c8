"""A segmentation script that logs its gradients after each epoch."""

import torch


def train_net(net, loader, experiment, amp=False):
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-5)
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)
    for _ in range(5):
        for images, masks in loader:
            with torch.cuda.amp.autocast(enabled=amp):
                loss = (net(images) - masks).pow(2).mean()
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.step(optimizer)
            grad_scaler.update()
        histograms = {}
        for tag, value in net.named_parameters():
            histograms["Weights/" + tag] = value.data.cpu()
            histograms["Gradients/" + tag] = value.grad.data.cpu()
            if value.grad is not None:
                histograms["Norms/" + tag] = value.grad.norm()
        experiment.log(histograms)
