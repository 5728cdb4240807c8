"""Scores of a comparison, against the confusion matrix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifiedamp.workloads.compare.scores import scores


def macro(labels, predicted):
    """Precision, recall and F1 from the confusion matrix, class by class."""
    classes = sorted(set(labels) | set(predicted))
    matrix = {(a, b): 0 for a in classes for b in classes}
    for pair in zip(labels, predicted, strict=True):
        matrix[pair] += 1
    rows = []
    for c in classes:
        hit = matrix[c, c]
        said = sum(matrix[a, c] for a in classes)
        there = sum(matrix[c, b] for b in classes)
        p = hit / said if said else 0.0
        r = hit / there if there else 0.0
        rows.append((p, r, 2 * p * r / (p + r) if p + r else 0.0))
    return [sum(column) / len(classes) for column in zip(*rows, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_scores_follow_the_confusion_matrix(pairs):
    labels, predicted = map(list, zip(*pairs, strict=True))
    found = scores(labels, predicted)
    assert found.accuracy == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert [found.precision, found.recall, found.f1] == pytest.approx(macro(labels, predicted))


def test_scores_of_one_known_case():
    found = scores([0, 0, 1, 1, 2], [0, 1, 1, 1, 1])
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.precision == pytest.approx((1 + 2 / 4 + 0) / 3)
    assert found.recall == pytest.approx((1 / 2 + 1 + 0) / 3)
