"""Train a classifier of handwritten digits with Gluon: `pip install '.[mxnet,examples]'`, then run this file."""

import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # has no annotations

import unifiedamp as ua

amp = ua.Amp("mxnet")  # takes the policy that suits the device; policy="mixed_bfloat16" names one

# After the session, which makes MXNet 1.9 importable with numpy 1.24 and newer.
import mxnet as mx  # type: ignore[import, unused-ignore]  # noqa: E402
from mxnet import gluon  # noqa: E402

# Data: 1797 images of 8 x 8 pixels, scaled to [0, 1].
images, labels = load_digits(return_X_y=True)
images = np.asarray(images, np.float32).reshape(-1, 1, 8, 8) / 16
labels = np.asarray(labels, np.int32)
order = np.random.default_rng(0).permutation(len(images))
train, test = order[:1500], order[1500:]

# Model: created inside the scope, so that it stands on the session's device with the policy's dtypes.
mx.random.seed(0)
with amp.scope():
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Conv2D(32, 3, padding=1, activation="relu", in_channels=1), gluon.nn.MaxPool2D(2))
    model.add(gluon.nn.Dense(64, activation="relu", in_units=512), gluon.nn.Dense(10, in_units=64))
    model.initialize(mx.init.Xavier())
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    optimizer = gluon.Trainer(model.collect_params(), "sgd", settings, update_on_kvstore=False)
model, optimizer = amp.prepare(model, optimizer)
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


# Loop.
@amp.compile  # hybridizes the model
def train_step(x: mx.nd.NDArray, y: mx.nd.NDArray) -> mx.nd.NDArray:
    with amp.autocast():
        loss = cross_entropy(model(x), y).mean()
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
