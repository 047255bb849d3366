"""genx bench --compare: two reports point by point."""

import json
from typing import Any

from genx.bench.compare import Comparison, Pair, compare
from genx.bench.estimates import Ratio
from genx.bench.records import Record, read_report
from genx.cli.bench_request import ComparisonRequest
from genx.cli.bench_view import comma_separated, markdown, record_name
from genx.cli.layout import Layout, show
from genx.cli.terminal import Terminal
from genx.engine.result import as_json_line
from genx.errors import ExitCode
from genx.messages import printable

_TITLES = ("point", "rate", "A tok/s", "B tok/s", "B / A", "95% interval", "verdict")


def show_comparison(terminal: Terminal, request: ComparisonRequest) -> int:
    """Compare, write the result, and return the exit code: 1 if something is slower by more than is allowed.

    Raises:
        UsageError: a report cannot be read.
    """
    found = compare(read_report(request.base), read_report(request.other))
    show(terminal, _rendered(found, terminal, request))
    if request.tolerance is None:
        return ExitCode.OK
    slower = [(pair, name) for pair in found.pairs for name in pair.slower_by(request.tolerance)]
    for pair, name in slower:
        ratio = pair.ratios.get(name)
        how = f"{ratio.median:.2f} times" if ratio is not None else pair.other.status
        terminal.say(f"genx: slower by more than {request.tolerance:.1%}: {record_name(pair.base)}: {name} is {how}")
    if not found.pairs:
        terminal.say("genx: the reports have no point in common")
    return ExitCode.FAILED if slower or not found.pairs else ExitCode.OK


def _rendered(found: Comparison, terminal: Terminal, request: ComparisonRequest) -> str:
    if request.output == "json":
        return json.dumps(_as_object(found), indent=1, allow_nan=False) + "\n"
    if request.output == "jsonl":
        return "".join(as_json_line(pair) for pair in _as_object(found)["pairs"])
    rows = [row for pair in found.pairs for row in _rows(pair)]
    if request.output == "csv":
        return comma_separated(_TITLES, rows)
    notes = [printable(note) for note in _notes(found)]
    if request.output == "md":
        return markdown(_TITLES, rows, words=2) + "\n" + "".join(f"- {note}\n" for note in notes)
    layout = Layout(terminal)
    table = layout.table_or_lines(_TITLES, rows, left=2) if rows else ""
    return table + "".join(note + "\n" for note in notes)


def _rows(pair: Pair) -> list[list[str]]:
    if not pair.ratios:
        return [
            [
                record_name(pair.base),
                "-",
                printable(pair.base.status),
                printable(pair.other.status),
                "-",
                "-",
                "not comparable",
            ]
        ]
    return [
        [
            record_name(pair.base),
            name.removesuffix("_tps"),
            f"{pair.base.measures[name].median:,.1f}",
            f"{pair.other.measures[name].median:,.1f}",
            f"{ratio.median:.3f}",
            "-" if ratio.low is None else f"[{ratio.low:.3f}, {ratio.high:.3f}]",
            _verdict(ratio),
        ]
        for name, ratio in pair.ratios.items()
    ]


def _verdict(ratio: Ratio) -> str:
    if ratio.low is None:
        return "too few samples"
    if not ratio.is_significant:
        return "not significant"
    return "faster" if ratio.median > 1 else "slower"


def _notes(found: Comparison) -> list[str]:
    notes = [f"A has {name} {first}, B {second}" for name, (first, second) in found.differing.items()]
    notes += [f"only in A: {record_name(record)}" for record in found.only_base]
    notes += [f"only in B: {record_name(record)}" for record in found.only_other]
    notes.append(
        "B / A is the median of all pairs of samples; the exact test of Mann and Whitney at 5% decides, "
        "which takes 4 samples of each or more"
    )
    return notes


def _as_object(found: Comparison) -> dict[str, Any]:
    return {
        "schema": 1,
        "differing": {name: list(values) for name, values in found.differing.items()},
        "pairs": [
            {
                "base": _identity(pair.base),
                "other": _identity(pair.other),
                "ratios": {
                    name: {"median": ratio.median, "ci95": [ratio.low, ratio.high], "significant": ratio.is_significant}
                    for name, ratio in pair.ratios.items()
                },
            }
            for pair in found.pairs
        ],
        "only_base": [_identity(record) for record in found.only_base],
        "only_other": [_identity(record) for record in found.only_other],
    }


def _identity(record: Record) -> dict[str, Any]:
    names = ("engine", "prompt_tokens", "new_tokens", "batch", "depth", "dtype", "threads", "weights", "status")
    return {name: getattr(record, name) for name in names}
