"""Draws docs/step.svg, how one step travels: `python docs/draw_step.py`."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path

LANES = (
    ("your loop", 16, 262, "#2f4858"),
    ("core: Amp, StepOrder, ScaleMonitor", 296, 270, "#33658a"),
    ("backend: its roles", 584, 212, "#7a5195"),
    ("framework, on its device", 814, 290, "#b5563c"),
)

ROWS = (
    (
        ("with amp.autocast():", "    loss = loss_fn(model(x), y)"),
        ("notes that a region was entered,", "and under which policy"),
        ("precision", ".autocast(enabled, policy)"),
        ("matmul, conv in compute_dtype;", "loss in output_dtype"),
    ),
    (
        ("with amp.scale_loss(loss, opt)", "        as scaled_loss:"),
        ("refuses a loss made outside a region;", "ends an iteration left open"),
        ("training", ".scale_loss(loss, [opt])"),
        ("float32(loss) * scale", "    / accumulate_steps"),
    ),
    (
        ("    scaled_loss.backward()", ""),
        ("", ""),
        ("ScaledLoss.backward()", ""),
        ("scaled gradients are added", "to the optimizer's window"),
    ),
    (
        ("amp.clip_grad_norm(opt, 1.0)", "(optional)"),
        ("unscales once per step; does nothing", "while micro-batches are missing"),
        ("unscale(opt)", "clip_grad_norm(opt, 1.0)"),
        ("all raw gradients finite?", "then gradients / scale, in place"),
    ),
    (
        ("result = amp.step(opt)", ""),
        ("micro-batch missing: stop here.", "last optimizer? then update_scale=True"),
        ("step(opt, update_scale)", ""),
        None,
    ),
    (
        ("result.applied, result.scale", "(reading may synchronize)"),
        ("ScaleMonitor polls: calls observers,", "stops a run whose scale is exhausted"),
        ("poll_state()", ""),
        ("scale, good_steps, bad_steps,", "applied_steps, skipped_steps"),
    ),
)

TOP, STEP, BOX = 74, 84, 60
HEIGHTS = [BOX, BOX, BOX, BOX, 156, BOX]


def text(x: float, y: float, words: str, size: int = 13, fill: str = "#1d2733", style: str = "") -> str:
    """One line of text; spaces are kept."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {style}xml:space="preserve">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, fill: str = "#ffffff") -> str:
    """A rounded box."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" stroke="{colour}" />'


def arrow(x1: float, x2: float, y: float) -> str:
    """A line to the right, with a head."""
    return f'<line x1="{x1}" y1="{y}" x2="{x2 - 2}" y2="{y}" stroke="#52606d" marker-end="url(#head)" />'


def cell(lane: int, y: float, lines: tuple[str, str], height: float) -> list[str]:
    """A box with one or two lines, in its lane's type face."""
    _, x, width, colour = LANES[lane]
    mono = 'font-family="ui-monospace, Menlo, Consolas, monospace" ' if lane in (0, 2) else ""
    shown = [line for line in lines if line]
    first = y + min(height, BOX) / 2 + (5 if len(shown) == 1 else -4)
    size = 12 if lane in (0, 2) else 13
    parts = [box(x, y, width, height, colour)]
    for i, line in enumerate(shown):
        faint = line.startswith("(")
        parts.append(text(x + 12, first + 19 * i, line, size, "#6b7785" if faint else "#1d2733", mono))
    return parts


def decision(y: float) -> list[str]:
    """The skip-or-apply box of ``step``, the heart of the picture."""
    _, x, width, colour = LANES[3]
    half = (width - 36) / 2
    left, right, top = x + 12, x + 24 + half, y + 36
    return [
        box(x, y, width, HEIGHTS[4], colour),
        text(x + 12, y + 24, "all gradients finite?", 13, "#1d2733", 'font-weight="bold" '),
        box(left, top, half, 62, "#3d8361", "#eef7f1"),
        text(left + 9, top + 18, "yes: apply", 12),
        text(left + 9, top + 36, "good_steps += 1", 12),
        text(left + 9, top + 54, "bad_steps = 0", 12),
        box(right, top, half, 62, "#b23a48", "#fbeff0"),
        text(right + 9, top + 18, "no: skip the update", 12),
        text(right + 9, top + 36, "good_steps = 0", 12),
        text(right + 9, top + 54, "bad_steps += 1", 12),
        text(x + 12, y + 119, "gradients zeroed; if update_scale,", 13),
        text(x + 12, y + 139, "the scale is updated for the next loss", 13),
    ]


def draw() -> str:
    """The whole picture."""
    total = TOP + sum(HEIGHTS) + (STEP - BOX) * len(ROWS) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1120 {total}" role="img" '
        'aria-label="How one training step travels from the loop through core and backend to the framework" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" stroke-width="1.4">',
        '<defs><marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#52606d" stroke="none" /></marker></defs>',
        f'<rect width="1120" height="{total}" rx="10" fill="#f6f8fa" stroke="none" />',
    ]
    for title, x, width, colour in LANES:
        parts.append(f'<rect x="{x}" y="18" width="{width}" height="34" rx="7" fill="{colour}" stroke="none" />')
        parts.append(text(x + width / 2, 40, title, 14, "#ffffff", 'text-anchor="middle" font-weight="bold" '))
    y = float(TOP)
    for row, height in zip(ROWS, HEIGHTS, strict=True):
        lanes = [i for i, lines in enumerate(row) if lines is None or any(lines)]
        for i in lanes:
            lines = row[i]
            parts += decision(y) if lines is None else cell(i, y, lines, BOX)
        for i, j in pairwise(lanes):
            parts.append(arrow(LANES[i][1] + LANES[i][2], LANES[j][1], y + BOX / 2))
        y += height + STEP - BOX
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("step.svg").write_text(draw(), encoding="utf-8")
