"""Train a classifier of handwritten digits with Keras: `pip install '.[tensorflow,examples]'`, then run this file."""

import numpy as np
import tensorflow as tf  # type: ignore[import, unused-ignore]  # has no annotations
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # has no annotations

import unifiedamp as ua

# Data: 1797 images of 8 x 8 pixels, scaled to [0, 1].
images, labels = load_digits(return_X_y=True)
images = np.asarray(images, np.float32).reshape(-1, 8, 8, 1) / 16
labels = np.asarray(labels, np.int32)
order = np.random.default_rng(0).permutation(len(images))
train, test = order[:1500], order[1500:]

# Model: created inside the scope, under the policy.
tf.keras.utils.set_random_seed(0)
amp = ua.Amp("tensorflow")  # takes the policy that suits the device; policy="mixed_float16" names one
layers = tf.keras.layers
with amp.scope():
    model = tf.keras.Sequential([
        tf.keras.Input((8, 8, 1)), layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10),
    ])  # fmt: skip
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
model, optimizer = amp.prepare(model, optimizer)


# Loop.
@amp.compile  # the whole step becomes a tf.function
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with amp.autocast():
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
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
