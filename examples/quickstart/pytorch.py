"""Train a classifier of handwritten digits with PyTorch: `pip install '.[torch,examples]'`, then run this file."""

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # has no annotations
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import unifiedamp as ua

# Data: 1797 images of 8 x 8 pixels, scaled to [0, 1].
images, labels = load_digits(return_X_y=True)
images = np.asarray(images, np.float32).reshape(-1, 1, 8, 8) / 16
labels = np.asarray(labels, np.int64)
order = np.random.default_rng(0).permutation(len(images))
train, test = order[:1500], order[1500:]

# Model: created inside the scope, so that it stands on the session's device with the policy's dtypes.
torch.manual_seed(0)
amp = ua.Amp("torch")  # takes the policy that suits the device; policy="mixed_float16" names one
with amp.scope():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = amp.prepare(model, optimizer)


# Loop. With @amp.compile above it, the whole step is compiled: on a GPU into a CUDA graph.
def train_step(x: Tensor, y: Tensor) -> Tensor:
    with amp.autocast():
        loss = cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.clip_grad_norm(optimizer, 1.0)  # clips the true gradients
    amp.step(optimizer)  # skips the step if a gradient is inf or nan; updates the scale, clears the gradients
    return loss


for epoch in range(5):
    batches = np.random.default_rng(epoch).permutation(train).reshape(-1, 60)
    losses = [train_step(amp.to_native(images[batch]), amp.to_native(labels[batch])) for batch in batches]
    print(f"epoch {epoch + 1}: loss {np.mean([amp.to_numpy(loss) for loss in losses]):.3f}")

with amp.inference():
    logits = amp.to_numpy(model(amp.to_native(images[test])))
accuracy = np.mean(logits.argmax(1) == labels[test])
print(f"policy {amp.policy}: {accuracy:.1%} of {len(test)} test images are right")
