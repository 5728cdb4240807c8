"""What a classifier's predictions are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scores:
    """Each from 0 to 1.

    Attributes:
        accuracy: the share of samples classified correctly.
        precision, recall, f1: the mean over the classes that occur (macro average), each class counting alike. What a
            class has none of (no sample predicted as it: no precision) counts as 0.
    """

    accuracy: float
    precision: float
    recall: float
    f1: float


def scores(labels: Sequence[int], predicted: Sequence[int]) -> Scores:
    """Return the scores of predictions against labels, both of the same length, at least 1."""
    right = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    there, said = Counter(labels), Counter(predicted)
    classes = sorted(there | said)
    precision = [_share(right[c], said[c]) for c in classes]
    recall = [_share(right[c], there[c]) for c in classes]
    f1 = [_share(2 * right[c], there[c] + said[c]) for c in classes]
    accuracy = right.total() / len(labels)
    return Scores(accuracy, *(sum(each) / len(classes) for each in (precision, recall, f1)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
