"""Decode speed over context, as a picture; needs matplotlib, the extra genx[plot]."""

from importlib import import_module
from typing import Any

from genx.bench.records import OK, Report
from genx.cli.bench_chart import decode_over_context
from genx.errors import GenxError


def plot(report: Report, file: str) -> None:
    """Draw the decode rates of a report into an SVG or PNG file.

    Raises:
        GenxError: there is nothing to draw, or the file cannot be written.
    """
    curves = decode_over_context(report.points)
    if not curves:
        raise GenxError(f"--plot: nothing to draw into {file}; a point with at least two new tokens is needed")
    intervals = {
        (record.depth + record.prompt_tokens, record.measures["decode_tps"].median): record.measures["decode_tps"]
        for record in report.points
        if record.status == OK and "decode_tps" in record.measures
    }
    figure: Any = import_module("matplotlib.figure").Figure(layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        contexts = [context for context, _ in curve]
        rates = [rate for _, rate in curve]
        ends = [intervals[point].interval for point in curve]
        below = [rate - low for rate, (low, _) in zip(rates, ends, strict=True)]
        above = [high - rate for rate, (_, high) in zip(rates, ends, strict=True)]
        axes.errorbar(contexts, rates, yerr=[below, above], marker="o", capsize=3, label=name)
    axes.set_xlabel("tokens in the context")
    axes.set_ylabel("decode tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.set_title(f"{report.env['cpu']}, {report.env['device']}")
    try:
        figure.savefig(file)
    except OSError as error:
        raise GenxError(f"--plot: {file} cannot be written: {error.strerror or error}") from error
