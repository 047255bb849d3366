"""One run of genx bench: points are measured, shown as they come where the format allows it, and reported."""

from contextlib import closing
from typing import Any

from genx.bench.measure import Doing, measure
from genx.bench.records import OK, Record, Report
from genx.cli.bench_prepare import Prepared, prepare
from genx.cli.bench_request import BenchRequest
from genx.cli.layout import show
from genx.cli.output import Output
from genx.cli.status import Status
from genx.cli.terminal import Terminal
from genx.engine.result import as_json_line
from genx.errors import ExitCode


def run_bench(terminal: Terminal, request: BenchRequest) -> int:
    """Measure what is asked for, write the report, and return the exit code. Ctrl-C reports what is there so far.

    Raises:
        GenxError: nothing can be measured; stdout is empty then.
        BrokenPipeError: whoever read stdout has gone.
    """
    with Status(terminal, shown=not request.quiet, eta=True) as status:
        prepared = prepare(terminal, request, status.show)
        report = _Reporter(terminal, request, prepared.env)
        interrupted = _measure(prepared, status, report)
    report.finish()
    if interrupted:
        terminal.say(f"genx: interrupted; {len(report.records)} rows are reported")
        return ExitCode.INTERRUPTED
    return ExitCode.OK if all(record.status == OK for record in report.records) else ExitCode.FAILED


def _measure(prepared: Prepared, status: Status, report: "_Reporter") -> bool:
    """Measure everything; whether Ctrl-C ended it early."""
    warned: set[str] = set()
    try:
        with closing(measure(prepared.plan, prepared.known.points)) as events:
            for event in events:
                if isinstance(event, Doing):
                    status.show(event.what, int(event.done), int(event.total) or 1)
                    continue
                for warning in event.warnings:
                    if warning not in warned:
                        warned.add(warning)
                        status.warn(warning)
                report.add(event.record)
    except KeyboardInterrupt:
        return True
    return False


class _Reporter:
    """The report on stdout: JSONL line by line, everything else once all is measured."""

    def __init__(self, terminal: Terminal, request: BenchRequest, env: dict[str, Any]) -> None:
        self.records: list[Record] = []
        self._terminal = terminal
        self._request = request
        self._env = env
        self._output = Output(terminal)

    def add(self, record: Record) -> None:
        """Take the next record."""
        self.records.append(record)
        if self._request.output == "jsonl":
            self._output.write(as_json_line(Report(self._env, (record,)).to_json()))

    def finish(self) -> None:
        """Write what is not written yet, and draw what is to be drawn."""
        report = Report(self._env, tuple(self.records))
        request = self._request
        if request.output != "jsonl":
            from genx.cli.bench_view import render

            show(self._terminal, render(report, self._terminal, request.output, chart=request.chart))
        if request.plot is not None:
            from genx.cli.bench_plot import plot

            plot(report, request.plot)
