"""A BERT-base-sized transformer encoder learns to predict masked words; skipped steps do not advance the warm-up."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

import torch
from torch import nn

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, mixed_policy, run

MASK, UNKNOWN = 0, 1
IGNORED = -100
BASE = {"width": 768, "layers": 12, "heads": 12, "length": 128}
TINY = {"width": 64, "layers": 2, "heads": 2, "length": 32}


def main(smoke: Smoke = False, policy: PolicyName = None, steps: int = 1000, batch_size: int = 64) -> None:
    """Train on the data set descriptions that ship with scikit-learn."""
    size = TINY if smoke else BASE
    steps, batch_size = (50, 8) if smoke else (steps, batch_size)
    words = read_words(512 if smoke else 8192)
    amp = ua.Amp("torch", policy or mixed_policy("torch"), loss_scale="dynamic")
    torch.manual_seed(0)
    with amp.scope():
        model = Encoder(int(words.max()) + 1, **size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if smoke else 1e-4, weight_decay=0.01)
    model, optimizer = amp.prepare(model, optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up(steps // 10, steps))

    log = Log(amp, every=10 if smoke else 100)
    for _ in range(steps):
        tokens, wanted = (amp.to_native(batch) for batch in masked_batch(words, batch_size, size["length"]))
        with amp.autocast():
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer, schedule)  # a skipped step does not advance the scheduler
        log.add(loss.detach())
    log.end()
    print(f"schedule after {schedule.last_epoch} steps: learning rate {schedule.get_last_lr()[0]:.2e}")


def warm_up(begin: int, end: int):  # type: ignore[no-untyped-def]
    """Return the learning rate factor: linear warm-up over ``begin`` steps, then linear decay to 0 at ``end``."""
    return lambda step: min((step + 1) / begin, max(0.0, (end - step) / (end - begin)))


class Encoder(nn.Module):
    """Embeddings, attention layers, and an output layer tied to the embeddings.

    Args:
        vocabulary: number of words; a multiple of 64 suits Tensor Cores.
        width, layers, heads, length: sizes of the encoder; ``length`` is the maximum text length in words.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, length) → logits (n, length, vocabulary)."""
        return nn.functional.linear(self.layers(self.words(tokens) + self.places), self.words.weight)


def read_words(vocabulary: int) -> torch.Tensor:
    """Return a text as word indices, ordered by frequency; 0 is the mask, 1 an unknown (rare) word."""
    folder = files("sklearn.datasets.descr")
    text = " ".join(sorted(file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".rst")))
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    common = [word for word, _ in Counter(words).most_common(vocabulary - 2)]
    number = {word: i for i, word in enumerate(common, 2)}
    return torch.tensor([number.get(word, UNKNOWN) for word in words])


def masked_batch(words: torch.Tensor, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts with 15 % of the words masked, and the targets: the masked words, elsewhere ``IGNORED``."""
    starts = torch.randint(len(words) - length, (size, 1))
    text = words[starts + torch.arange(length)]
    masked = torch.rand(text.shape) < 0.15
    return text.masked_fill(masked, MASK), text.masked_fill(~masked, IGNORED)


if __name__ == "__main__":
    run(main)
