"""Decode speed over context, as bars in the terminal."""

from collections.abc import Mapping, Sequence

from genx.bench.records import OK, Record
from genx.cli.layout import Layout
from genx.messages import printable

Curves = Mapping[str, Sequence[tuple[int, float]]]

_LONGEST_BAR = 60


def decode_over_context(records: Sequence[Record]) -> dict[str, list[tuple[int, float]]]:
    """(tokens in the context when the prompt is read, decode tokens/s) by what else tells points apart, in order.

    A context that several points have is that of the last one.
    """
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        if record.status == OK and "decode_tps" in record.measures:
            name = f"{record.engine} {record.weights}, batch {record.batch:,}, threads {record.threads}"
            context = record.depth + record.prompt_tokens
            curves.setdefault(name, {})[context] = record.measures["decode_tps"].median
    return {name: sorted(points.items()) for name, points in curves.items()}


def draw(curves: Curves, layout: Layout) -> str:
    """A bar for each context of each curve, all to one scale; nothing where the terminal is too narrow."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    fastest = max(rate for _, rate in points)
    labels = max(len(f"{context:,}") for context, _ in points)
    figures = max(len(f"{rate:,.1f}") for _, rate in points)
    room = min(layout.width - labels - figures - 2, _LONGEST_BAR)
    if room < 4 or fastest <= 0:
        return ""
    cell = "█" if layout.unicode else "#"
    lines = ["decode tok/s over the tokens in the context"]
    for name, curve in curves.items():
        lines.append(printable(name))
        for context, rate in curve:
            bar = cell * max(round(room * rate / fastest), 1)
            lines.append(f"{context:>{labels},} {bar:<{room}} {rate:>{figures},.1f}")
    return "\n".join(lines) + "\n"
