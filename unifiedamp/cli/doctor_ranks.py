"""What ``unifiedamp doctor`` says of training on several GPUs: launchers, libraries of communication, links."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from .show import say


def show_ranks(out: Console, found: dict[str, Any]) -> None:
    """Print the lines; ``found`` is what ``examine`` returns."""
    there = [name for name, path in found["launchers"].items() if path]
    absent = [name for name, path in found["launchers"].items() if not path]
    line = f"launchers: {', '.join(there) or 'none'}"
    say(out, f"{line}; not installed: {', '.join(absent)}" if absent else line)
    inside = found["launched_by"]
    if inside is not None:
        place = inside.get("error") or _place(inside)
        variables = " ".join(f"{name}={value}" for name, value in inside["variables"].items())
        say(out, f"started by {inside['launcher']}: {place} ({variables})")
    for name, one in found["backends"].items():
        if one.get("communication"):
            parts = (f"{library}: {state}" for library, state in one["communication"].items())
            say(out, f"communication of {name}: {'; '.join(parts)}")
    if len(found["gpus"]) > 1:
        say(out, f"links between GPUs: {_links(found['links'])}")


def _place(inside: dict[str, Any]) -> str:
    if "role" in inside:
        return f"{inside['role']} of {inside['size']} workers"
    return f"rank {inside['rank']} of {inside['size']}"


def _links(links: dict[str, Any]) -> str:
    pairs = ("{}-{} {} ({})".format(*each["gpus"], each["link"], each["code"]) for each in links["pairs"])
    return ", ".join(pairs) or links["reason"] or "nvidia-smi names none"
