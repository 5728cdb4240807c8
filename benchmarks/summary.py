"""The first table of docs/benchmarks.md: one row per question, from the records in benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
COLUMNS = ("question", "model", "hardware", "ratio", "details")


def summary(folder: Path, details: str) -> list[str]:
    """Return the table as Markdown lines.

    Args:
        folder: of the records.
        details: the page that the last column links to.
    """
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- | --- | --- | ---: | --- |"]
    for question, kind, rows in (
        ("times the speed of {}", "frameworks", _speeds),
        ("times the speed of {}", "distributed", _ranks),
        ("times the speed of {}", "replicas", _replicas),
        ("time of an eager step, over {}", "overhead", _overheads),
        ("time added by the recorder at every 100th step", "recorder", _recorded),
        ("time until a compiled step is ready, over {}", "warm", _warm_ups),
        ("time of a compiled step, over {}", "bf16", _pairs),
        ("time of a compiled step, over {}", "fp8", _pairs),
        ("time of a step in {}, over its own mixed precision", "trainers", _trainers),
        ("time of a step in fit, over Keras's own mixed precision", "keras", _fits),
    ):
        for record in _records(folder, kind):
            for reference, model, ratio in rows(record):
                asked = f"{_framework(record)}: {question.format(reference)}"
                lines.append(
                    f"| {asked} | {model} | {_hardware(record)} | {ratio} | [{kind}]({details}#{ANCHORS[kind]}) |"
                )
    return lines


ANCHORS = {
    "frameworks": "speedup", "overhead": "overhead", "recorder": "recorder-overhead", "warm": "warm-up",
    "bf16": "bfloat16-on-cpu",
    "fp8": "float8", "trainers": "inside-trainers", "distributed": "several-gpus",
    "replicas": "replicas-of-a-keras-model", "keras": "keras-fit",
}  # fmt: skip


def _records(folder: Path, kind: str) -> Sequence[Record]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob(f"{kind}-*.json"))]


def _framework(record: Record) -> str:
    name = str(record["title"]).partition(":")[0]
    return {"torch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet"}.get(name, name)


def _hardware(record: Record) -> str:
    gpu = record["hardware"].get("gpu")
    return str(gpu["name"]) if gpu else f"{record['hardware']['cpu']}, {record['hardware']['cores']} cores"


def _speeds(record: Record) -> Iterator[tuple[str, str, str]]:
    """Of a race: the fastest form of the library against each reference, as a ratio of speeds."""
    ours = [row for row in record["rows"] if row["labels"]["configuration"].startswith("ours") and not row["failed"]]
    for recipe in dict.fromkeys(row["labels"]["recipe"] for row in ours):
        best = min((row for row in ours if row["labels"]["recipe"] == recipe), key=lambda row: row["ms"])
        for reference, (value, low, high) in best["ratios"].items():
            yield (
                reference,
                f"{recipe}, {best['labels']['configuration']}",
                f"{1 / value:.2f} ({1 / high:.2f}-{1 / low:.2f})",
            )


def _ranks(record: Record) -> Iterator[tuple[str, str, str]]:
    """Of several ranks: mode "max" against the native loop, as a ratio of speeds."""
    ranks = record["hardware"]["ranks"]
    for row in record["rows"]:
        labels = row["labels"]
        if labels["configuration"] == "ours max" and ranks > 1:
            for reference, (value, low, high) in row["ratios"].items():
                asked = f"{reference} with {labels['wrapper']} on {ranks} GPUs"
                model = f"{labels['recipe']}, batch {labels['batch per rank']}, {labels['policy']}"
                yield asked, model, f"{1 / value:.2f} ({1 / high:.2f}-{1 / low:.2f})"


def _replicas(record: Record) -> Iterator[tuple[str, str, str]]:
    """The same over the replicas of a strategy."""
    for row in record["rows"]:
        labels = row["labels"]
        if labels["configuration"] == "ours max":
            for reference, (value, low, high) in row["ratios"].items():
                asked = f"{reference} under MirroredStrategy on {record['hardware']['replicas']} GPUs"
                model = f"{labels['recipe']}, batch {labels['batch per replica']}, {labels['policy']}"
                yield asked, model, f"{1 / value:.2f} ({1 / high:.2f}-{1 / low:.2f})"


def _overheads(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        labels = row["labels"]
        if labels["form"] == "eager" and labels["loss scale"] == "dynamic":
            yield "the hand-written loop's", _model(labels), _interval(row)


def _recorded(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        if row["labels"].get("at every 100th step"):
            shown = [row["labels"][name] for name in ("recipe", "form", "records") if name in row["labels"]]
            yield "", ", ".join(shown), row["labels"]["at every 100th step"]


def _pairs(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        yield record["columns"][1], _model(row["labels"]), _interval(row)


def _warm_ups(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        model, mode, cache = row["labels"].values()
        yield record["columns"][1], f"{model}, {mode}, {cache} cache", f"{row['ratio']:.2f}"


def _fits(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        if row["labels"]["output"] == "silent":
            yield "", f"{row['labels']['model']}, {row['labels']['form']}", _interval(row)


def _trainers(record: Record) -> Iterator[tuple[str, str, str]]:
    for row in record["rows"]:
        for ratio in [] if row["failed"] else row["ratios"].values():
            if row["labels"]["by"] == "unifiedamp":
                yield row["labels"]["trainer"], row["labels"]["recipe"], "{:.3f} ({:.3f}-{:.3f})".format(*ratio)


def _model(labels: Mapping[str, str]) -> str:
    blocks = f"transformer, {labels['blocks × width']}" if "blocks × width" in labels else ""
    name = ", ".join(filter(None, (labels.get("recipe"), blocks)))
    optimizer = labels.get("optimizer")
    return f"{name} ({optimizer})" if optimizer else name


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.3f} ({row['low']:.3f}-{row['high']:.3f})"
