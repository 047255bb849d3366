"""Reports of genx bench for people and for other programs."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from genx.bench.estimates import Measure
from genx.bench.jobs import GENX
from genx.bench.records import MEASURES, OK, Record, Report
from genx.cli.bench_chart import decode_over_context, draw
from genx.cli.layout import Layout
from genx.cli.terminal import Terminal
from genx.kv_size.quantities import human_bytes
from genx.messages import printable

Column = tuple[str, Callable[[Record], str]]

_COUNTS = ("prompt_tokens", "new_tokens", "batch", "depth", "dtype", "threads", "weights")


def render(report: Report, terminal: Terminal, form: str, *, chart: bool | None = None) -> str:
    """The report as text that ends with a line feed.

    Args:
        report: what was measured.
        terminal: where it is shown.
        form: table, md, csv or json.
        chart: draw decode speed over context below a table; None: if there are several contexts.
    """
    if form == "json":
        return _as_json(report)
    if form == "csv":
        return _as_csv(report)
    if form == "md":
        return _as_markdown(report)
    return _as_table(report, Layout(terminal), chart)


def record_name(record: Record) -> str:
    """Which point a record is, in a few words."""
    depth = f" after {record.depth:,}" if record.depth else ""
    shape = f"{record.prompt_tokens:,}+{record.new_tokens:,}{depth}, batch {record.batch:,}"
    return printable(f"{record.engine} {record.weights} {shape}, threads {record.threads}")


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """A Markdown table whose first `words` columns are words, the others numbers."""
    lines = [list(titles), ["---" if place < words else "---:" for place in range(len(titles))], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def comma_separated(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """CSV with a line of titles."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


def _as_json(report: Report) -> str:
    written = report.to_json()
    points = ",\n  ".join(json.dumps(point, allow_nan=False) for point in written["points"])
    head = json.dumps({"schema": written["schema"], "env": written["env"]}, allow_nan=False)
    return f'{head[:-1]},\n "points": [\n  {points}\n]}}\n'


def _as_csv(report: Report) -> str:
    titles = ["engine", *_COUNTS, "total_tokens", "status", "error"]
    for name in MEASURES:
        titles += [name, f"{name}_low", f"{name}_high"]
    titles += ["itl_ms_p90", "itl_ms_p99", "token_passes", "repeats", "noisy"]
    return comma_separated(titles, [_csv_row(record) for record in report.points])


def _csv_row(record: Record) -> list[object]:
    written = record.to_json()
    row: list[object] = [written[name] for name in ("engine", *_COUNTS, "total_tokens", "status")]
    row = [printable(value) for value in [*row, record.error or ""]]
    for name in MEASURES:
        found = record.measures.get(name)
        row += ["", "", ""] if found is None else [found.median, *found.interval]
    latency = written["itl_ms"] or {}
    repeats = len(record.measures["ttft_s"].samples) if "ttft_s" in record.measures else 0
    return [*row, latency.get("p90", ""), latency.get("p99", ""), record.token_passes, repeats, " ".join(record.noisy)]


def _as_markdown(report: Report) -> str:
    columns = [*_workload_columns(()), *_result_columns(report.points)]
    rows = [[printable(cell(record)) for _, cell in columns] for record in report.points]
    notes = "".join(f"- {printable(line)}\n" for line in [*_heading(report), *_notes(report)])
    return markdown([title for title, _ in columns], rows, words=1) + "\n" + notes


def _as_table(report: Report, layout: Layout, chart: bool | None) -> str:
    columns = [*_workload_columns(report.points), *_result_columns(report.points)]
    rows = [[printable(cell(record)) for _, cell in columns] for record in report.points]
    titles = [title for title, _ in columns]
    if not layout.unicode:
        rows = [[cell.replace("±", "+-").encode("ascii", "backslashreplace").decode() for cell in row] for row in rows]
    lines = [*_heading(report), *_constants(report.points)]
    parts = ["\n".join(map(printable, lines)) + "\n", layout.table_or_lines(titles, rows) if rows else ""]
    parts.append("".join(printable(line) + "\n" for line in _notes(report)))
    curves = decode_over_context(report.points)
    if chart if chart is not None else any(len(points) > 1 for points in curves.values()):
        parts.append(draw(curves, layout))
    return "\n".join(part for part in parts if part)


def _heading(report: Report) -> list[str]:
    env = report.env
    versions = f"genx {env['genx']}, torch {env['torch']}"
    versions += "".join(f", {name} {version}" for name, version in env["peers"].items())
    affinity = "" if env["affinity"] == env["cores"] else f", {env['affinity']} of them usable"
    lines = [
        f"{env['model']} ({env['model_hash'][:12]}), {versions}",
        f"{env['device']}: {env['cpu']}, {env['cores']} cores{affinity}",
    ]
    for rates in env["rates"]:
        products = ", ".join(f"{dtype} {rate:,.0f} GFLOP/s" for dtype, rate in rates["matmul_GFLOP_s"].items())
        threads = f"{rates['threads']} thread{'s' * (rates['threads'] != 1)}"
        lines.append(f"measured with {threads}: memory {rates['read_GB_s']:,.1f} GB/s, {products}")
    return lines


def _constants(records: Sequence[Record]) -> list[str]:
    """What is the same in every row and has no column therefore."""
    if not records:
        return ["nothing was measured"]
    first = records[0]
    said = [f"{title} {cell(first)}" for title, cell in _workload_columns(()) if title not in _varying(records)]
    chosen = "sampled" if first.sampling.get("do_sample") else "greedy"
    said += ["the model alone" if first.forward_only else f"{chosen}, end of text ignored"]
    said += [] if first.cache else ["no cache"]
    said += [] if first.kernels == "auto" else [f"kernels {first.kernels}"]
    said += [] if first.prompt == "random" else [f"prompts from a text ({first.prompt})"]
    return [", ".join(said)]


_WORKLOAD: tuple[Column, ...] = (
    ("engine", lambda record: record.engine),
    ("prompt", lambda record: f"{record.prompt_tokens:,}"),
    ("new", lambda record: f"{record.new_tokens:,}"),
    ("batch", lambda record: f"{record.batch:,}"),
    ("depth", lambda record: f"{record.depth:,}"),
    ("dtype", lambda record: record.dtype),
    ("weights", lambda record: record.weights),
    ("threads", lambda record: f"{record.threads}"),
)


def _varying(records: Sequence[Record]) -> set[str]:
    return {title for title, cell in _WORKLOAD if len({cell(record) for record in records}) > 1}


def _workload_columns(records: Sequence[Record]) -> list[Column]:
    """Those that differ between the records, and the prompt; all of them where there are no records to look at."""
    if not records:
        return list(_WORKLOAD)
    wanted = _varying(records) | {"prompt"}
    return [column for column in _WORKLOAD if column[0] in wanted]


def _result_columns(records: Sequence[Record]) -> list[Column]:
    columns: list[Column] = [
        ("ttft s", lambda record: _figure(record, "ttft_s", "{:,.3f}")),
        ("prefill tok/s", lambda record: _figure(record, "prefill_tps", "{:,.1f}")),
        ("decode tok/s", lambda record: _figure(record, "decode_tps", "{:,.1f}")),
        ("limit", lambda record: _plain(record, "limit_share", lambda share: f"{share:.0%}")),
        ("peak", lambda record: _plain(record, "peak_memory_bytes", lambda count: human_bytes(round(count)))),
    ]
    if any(record.status != OK or record.noisy for record in records):
        columns.append(("note", lambda record: record.status if record.status != OK else "noisy" * bool(record.noisy)))
    return columns


def _figure(record: Record, name: str, form: str) -> str:
    """The median, and half the width of its interval as a share of it."""
    found = record.measures.get(name)
    if found is None:
        return "-"
    low, high = found.interval
    spread = f" ±{(high - low) / 2 / found.median:.0%}" if len(found.samples) > 1 and found.median else ""
    return form.format(found.median) + spread


def _plain(record: Record, name: str, form: Callable[[float], str]) -> str:
    found = record.measures.get(name)
    return "-" if found is None else form(found.median)


def _notes(report: Report) -> list[str]:
    ok = [record for record in report.points if record.status == OK]
    label = _labels(report.points)
    lines = [line for record in ok for line in _figures(record, label(record))]
    lines += [line for record in ok for line in _against(record, label(record))]
    if ok:
        measure = ok[0].measures["ttft_s"]
        count = len(measure.samples)
        which = f"smallest to largest of {count} repeats" if count < 6 else f"order statistics of {count} repeats"
        lines.append(f"± is half the interval of the median: {which}, which holds it with {measure.coverage:.2%}")
    if any(record.noisy for record in ok):
        lines.append("noisy: the interval is wider than 10% of the median; more repeats or a quieter machine help")
    failed = [record for record in report.points if record.status != OK]
    return lines + [f"{record.status}: {label(record)}: {record.error}" for record in failed]


def _labels(records: Sequence[Record]) -> Callable[[Record], str]:
    """What tells each record from the others, in words."""
    columns = _workload_columns(records)
    return lambda record: ", ".join(f"{title} {cell(record)}" for title, cell in columns)


def _figures(record: Record, label: str) -> Iterator[str]:
    latency: Mapping[str, Any] | None = record.to_json()["itl_ms"]
    if latency is not None:
        shown = ", ".join(f"p{percent} {latency[f'p{percent}']:,.1f}" for percent in (50, 90, 99))
        yield f"{label}: ms between tokens: {shown}"
    if record.engine != GENX:
        return
    if record.limits is not None and "decode_tps" in record.measures:
        limits = record.limits
        yield (
            f"{label}: a token reads {human_bytes(round(limits['bytes_per_token']))} and takes "
            f"{limits['flop_per_token'] / 1e6:,.1f} MFLOP: at most {limits['decode_tps']:,.1f} tok/s here"
        )
    formula = record.token_passes_formula
    yield (
        f"{label}: {record.token_passes:,} token passes a row; the formulas say {formula['cached']:,} with the cache "
        f"and {formula['uncached']:,} without"
    )


def _against(record: Record, label: str) -> Iterator[str]:
    for name, ratio in record.ratio.items():
        yield f"{label}: genx is {_times(ratio)} as fast in {name.removesuffix('_tps')}"
    if record.reused_tokens:
        yield f"{label}: {record.reused_tokens:,} prompt tokens came from a cache of the engine's own: not comparable"


def _times(ratio: Measure) -> str:
    low, high = ratio.interval
    return f"{ratio.median:.2f} times [{low:.2f}, {high:.2f}]"
