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


class Experiment:
    def __init__(self):
        self.logged = []

    def log(self, histograms):
        self.logged += [w for _, kept in sorted(histograms.items()) for w in kept.flatten().tolist()]


def train(flag):
    torch.manual_seed(31)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))
    loader = [(torch.randn(8, 6), torch.rand(8, 6)) for _ in range(3)]
    experiment = Experiment()
    train_net(net, loader, experiment, amp=flag)
    return experiment.logged + [w for p in net.parameters() for w in p.detach().flatten().tolist()]
