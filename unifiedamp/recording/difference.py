"""Where two recorded runs diverge: the first step, layer and tensor, and in which part of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from .alignment import pair_rows
from .distance import limit_of, lowest
from .divergence import Difference
from .ranks_of_step import RankCount, RanksOfStep
from .reading import Recording
from .same_model import Pairing, pairing, unwrapped
from .step_pair import Comparison, StepPair

RAN = {
    "uncompiled": "the loop of the {} run is compiled, and its recorded steps ran uncompiled: compiled steps are "
    "compared by the weights that they left before the next recorded step",
    "compiled": "the {} run is compiled, and its recorded steps ran compiled, with what is recorded as further outputs",
}


def difference(a: Recording, b: Recording, ulp: float | None = None) -> Difference:
    """Compare two recordings made with ``amp.record(compare=True)``.

    Args:
        a, b: the recordings.
        ulp: distance from which tensors differ, in ULP of the lower-precision dtype; None: ``ULP32`` for float32,
            else ``ULP``.

    Raises:
        ConfigError: one was made without ``compare``, the models differ, or no step is in both.
    """
    a, b = unwrapped(a), unwrapped(b)
    paired = pairing(a, b)
    ours, theirs = ({step["step"]: step for step in each.steps if "compare" in step} for each in (a, b))
    pairs = [(step, theirs[number]) for number, step in ours.items() if number in theirs]
    if not pairs:
        raise ConfigError("the recordings have no recorded step in common; record both with the same every=")
    about = _comparison(a, b, paired, ulp)
    found = None
    for index, (one, other) in enumerate(pairs):
        before = pairs[index - 1] if index else None
        found = next(StepPair(one, other, before, about).differences(), None)
        if found is not None:
            break
    compared = list(_compared(a, b, pairs, about))
    return Difference(list(_settings(a.header, b.header)), len(pairs), compared, found)


def _comparison(a: Recording, b: Recording, paired: Pairing, ulp: float | None) -> Comparison:
    headers = a.header, b.header
    compute, params = ([str(each.get(key, "float32")) for each in headers] for key in ("compute_dtype", "param_dtype"))
    alike = {(each["backend"], "emulate=true" in str(each.get("policy", "")).split(";")) for each in headers}
    same = len(set(compute)) == len(set(params)) == len(alike) == 1
    # Optimizers with an epsilon divide by the size of gradients.
    known = {row["layer"] for each in (a, b) for row in each.steps[0]["activations"]}
    adaptive = any(row["layer"] not in known for each in headers for row in each["epsilons"])
    ranks = RankCount.of(a.header), RankCount.of(b.header)
    return Comparison(paired, lowest([*compute, *params]), lowest(params), ulp, same, adaptive, ranks)


def _compared(
    a: Recording, b: Recording, pairs: list[tuple[dict[str, Any], dict[str, Any]]], about: Comparison
) -> Iterator[str]:
    """Yield what was compared, and how, where that is not each tensor of both runs by its elements."""
    limit = limit_of(about.dtype, about.ulp)
    if not about.same_dtype:
        yield (
            f"tensors differ where they are farther apart than {limit:.2g}, the limit for {about.dtype}, and than 4 "
            "times what they are computed from"
        )
    for which, steps in zip(("first", "second"), zip(*pairs, strict=True), strict=True):
        ran = {str(step.get("ran", "eager")) for step in steps}
        yield from (RAN[each].format(which) for each in sorted(ran) if each in RAN)
    yield from _ranks_compared(about)
    if about.pairing.part == "ordered":
        rows, others = RanksOfStep(*pairs[0], about.ranks, layouts=False).rows()
        matched, of_all = len(pair_rows(rows, others, names=False)), len(rows)
        yield (
            f"{a.header['backend']} and {b.header['backend']}: {matched} of {of_all} inputs and "
            "outputs of the first one's layers matched by order, kind and size; tensors by "
            "their values in ascending order, so that layouts do not count"
        )
    elif not about.pairing.names:
        yield "layers have other names in both runs: matched by order, kind and size"
    if about.pairing.left_out:
        yield f"without partner, and left out: {', '.join(about.pairing.left_out[:10])}"
    for which, each in (("first", a), ("second", b)):
        if each.damaged:
            lines = "1 line" if each.damaged == 1 else f"{each.damaged} lines"
            yield f"left out of the {which} recording: {lines} that could not be read"


def _ranks_compared(about: Comparison) -> Iterator[str]:
    one, other = about.ranks
    if one == other:
        return
    layouts = about.pairing.part == "sketch"
    reductions = " or ".join(sorted({each.reduction for each in (one, other) if each.reduction}))
    own = f"gradients by the {reductions} of the ranks' own" if layouts else "gradients after they were reduced"
    yield (
        f"{one.count} and {other.count} ranks: layers by norms{' and sums' if layouts else ''} over the whole batch, "
        f"{own}; where a rank did not answer, weights and summed gradients alone"
    )


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what differs in environment and settings; native calls are not compared between frameworks."""
    for name in (
        "backend", "framework_version", "device", "policy", "loss_scale", "accumulate_steps", "every", "ranks",
        "unifiedamp",
    ):  # fmt: skip
        yield from _row(name, a.get(name), b.get(name))
    one, other = a.get("environment", {}), b.get("environment", {})
    for name in dict.fromkeys([*one, *other]):
        yield from _row(name, one.get(name), other.get(name))
    if a["backend"] != b["backend"]:
        return
    plans = [{row[0]: f"{row[1]}: {row[2]}" for row in header.get("settings", ())} for header in (a, b)]
    for name in dict.fromkeys([*plans[0], *plans[1]]):
        if name not in ("policy", "loss_scale", "accumulate_steps", "device"):
            yield from _row(name, plans[0].get(name), plans[1].get(name))


def _row(name: str, a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    if a != b:
        yield name, "-" if a is None else str(a), "-" if b is None else str(b)
