"""One run over files of prompts, from the checkpoint's folder to the closing line on stderr."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from genx.checkpoint import read_generation_defaults
from genx.cli.flags import spell_flag
from genx.cli.interrupt import Interruption
from genx.cli.loading import find_model, load_tokenizer, read_config
from genx.cli.output import Output
from genx.cli.requests import ModelRequest, OutputRequest, PromptRequest
from genx.cli.rows_batch import ready_batch
from genx.cli.rows_count import report_counts
from genx.cli.rows_progress import RowsProgress
from genx.cli.rows_request import RowsRequest
from genx.cli.status import Status, forwarded_warnings
from genx.cli.terminal import Terminal
from genx.engine.rows.counting import count_rows
from genx.engine.rows.encode import Encoding
from genx.engine.rows.formats import AnswerFormat, OutputFormat, answer_format
from genx.engine.rows.identity import model_digest
from genx.engine.rows.plan import Plan
from genx.engine.rows.resume import Resumption, match_rows
from genx.engine.rows.sources import Source, find_sources
from genx.engine.rows.target import Leftovers, Target
from genx.engine.rows.writers import Ordered, Unordered, Writer
from genx.engine.settings import RequestedSettings
from genx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel
    from genx.engine.rows.run import JobBatch, RowsRun, Tally


def run_rows(
    terminal: Terminal,
    wanted: ModelRequest,
    asked: PromptRequest,
    requested: RequestedSettings,
    output: OutputRequest,
    rows: RowsRequest,
) -> int:
    """Answer files of prompts and return the exit code.

    Raises:
        GenxError: nothing can be run, or it cannot go on; what is done stays.
        BrokenPipeError: whoever read stdout has gone.
    """
    return _Session(terminal, wanted, asked, requested, output, rows).run()


class _Session:
    """The parts of one run, made one after the other: what can be refused is refused before weights are read."""

    def __init__(
        self,
        terminal: Terminal,
        wanted: ModelRequest,
        asked: PromptRequest,
        requested: RequestedSettings,
        output: OutputRequest,
        rows: RowsRequest,
    ) -> None:
        self._terminal = terminal
        self._wanted = _same_for_every_batch(wanted) if rows.batch_invariant else wanted
        self._asked = asked
        self._output = output
        self._rows = rows
        self._target = None if rows.output is None else Target(rows.output)
        self._may_exist = rows.resume or rows.overwrite
        if self._target is not None and not rows.count:
            self._target.check(may_exist=self._may_exist)
        self._folder = find_model(wanted.model, terminal)
        self._defaults = read_generation_defaults(self._folder)
        self._plan = self._make_plan(requested)
        self._encoding = self._make_encoding()

    def run(self) -> int:
        """Count, or generate, and return the exit code."""
        return self._count() if self._rows.count else self._answer()

    def _count(self) -> int:
        with Status(self._terminal, shown=not self._output.quiet) as status, forwarded_warnings(status.warn):
            status.show("counting tokens")
            counts = count_rows(self._plan, self._encoding)
        return report_counts(
            self._terminal, counts, self._folder, self._wanted, self._rows.batch_size, as_json=self._output.json
        )

    def _answer(self) -> int:
        with (
            self._claimed_target(),
            Status(self._terminal, shown=not self._output.quiet) as status,
            forwarded_warnings(status.warn),
        ):
            status.show("reading the input")
            answers = self._answers()
            left, resumption = self._resumption(answers)
            total = self._total(resumption)
            with self._ready_batch(status) as (batch, model):
                writer = self._writer(answers, left, resumption, status)
                run = self._make_run(batch, answers, writer, resumption)
                progress = RowsProgress(self._terminal, status, total, quiet=self._output.quiet)
                was_interrupted = self._generate(run, progress)
                if not was_interrupted and model is not None:
                    self._verify(run, model, status)
        if not self._output.quiet or self._output.stats:
            self._terminal.say(f"genx: {progress.closing_line(run.tally)}")
        if was_interrupted:
            hint = "; --resume goes on from here" if self._target is not None else ""
            self._terminal.say(f"genx: stopped before the last row{hint}")
            return ExitCode.INTERRUPTED
        return _exit_code(run.tally)

    def _claimed_target(self) -> AbstractContextManager[None]:
        return nullcontext() if self._target is None else self._target.claimed(may_exist=self._may_exist)

    def _make_plan(self, requested: RequestedSettings) -> Plan:
        rows = self._rows
        arithmetic = self._wanted.arithmetic()
        plan = Plan(
            sources=self._sources(),
            separator=rows.separator,
            fields=rows.fields,
            requested=requested,
            defaults=self._defaults,
            samples=rows.samples,
            run={
                "model": model_digest(self._folder),
                "device": arithmetic.device,
                "dtype": arithmetic.dtype or "stored",
                "quantize": self._wanted.quantize,
                "operations": arithmetic.operations,
                "system": self._asked.system,
                "raw": self._asked.raw,
                "parse_special": self._asked.parse_special,
                "special": self._output.special,
            },
        )
        settings = plan.common_settings
        if settings.unused:
            flags = ", ".join(map(spell_flag, settings.unused))
            self._terminal.say(f"genx: warning: --greedy takes the most likely token; not used: {flags}")
        return plan

    def _sources(self) -> list[Source]:
        sources = find_sources(self._rows.inputs, self._terminal.stdin, self._rows.input_format)
        # To resume, rows are matched with the answers first; the header of a CSV names the fields of the first row.
        reads_twice = self._rows.resume or self._rows.format is OutputFormat.CSV
        return [source.again() for source in sources] if reads_twice else sources

    def _make_encoding(self) -> Encoding:
        config = read_config(self._folder)
        tokenizer = load_tokenizer(self._folder, required=True)
        assert tokenizer is not None
        return Encoding(
            tokenizer,
            config.max_position_embeddings,
            config.vocab_size,
            system=self._asked.system,
            raw=self._asked.raw,
            parse_special=self._asked.parse_special,
            bos_token_id=self._defaults.bos_token_id,
            truncate=self._asked.truncate,
            special=self._output.special,
        )

    def _answers(self) -> AnswerFormat:
        if self._rows.format is not OutputFormat.CSV:
            return answer_format(self._rows.format, ())
        first = next((row for row in self._plan.rows() if row is not None), None)
        return answer_format(self._rows.format, () if first is None else tuple(first.passed))

    def _resumption(self, answers: AnswerFormat) -> tuple[Leftovers, Resumption]:
        if not self._rows.resume or self._target is None:
            return Leftovers(), Resumption()
        left = self._target.leftovers(answers)
        resumption = match_rows(
            self._plan.rows(),
            left.in_file,
            left.parked,
            self._encoding.possible_keys,
            retry_errors=self._rows.retry_errors,
            in_order=not self._rows.unordered,
        )
        return left, resumption

    def _total(self, resumption: Resumption) -> int | None:
        if self._rows.resume:
            return resumption.rows
        return self._plan.count() if all(source.can_be_read_again for source in self._plan.sources) else None

    def _writer(self, answers: AnswerFormat, left: Leftovers, resumption: Resumption, status: Status) -> Writer:
        in_order = not self._rows.unordered
        if self._target is not None:
            return self._target.writer(answers, left, resumption, in_order=in_order)
        out = Output(self._terminal)

        def emit(answer: bytes) -> None:
            if self._terminal.stdout_is_terminal:
                status.hide()  # both may share the terminal
            out.write(answer.decode("utf-8"))

        emit(answers.header().encode())
        return Ordered(emit, end=out.close) if in_order else Unordered(emit, end=out.close)

    def _ready_batch(self, status: Status) -> "AbstractContextManager[tuple[JobBatch, BaseModel | None]]":
        digest = self._plan.run["model"]
        return ready_batch(self._folder, digest, self._wanted, self._rows, self._terminal, status)

    def _make_run(self, batch: "JobBatch", answers: AnswerFormat, writer: Writer, resumption: Resumption) -> "RowsRun":
        from genx.engine.rows.run import RowsRun

        return RowsRun(self._plan, self._encoding, batch, answers, writer, resumption, self._rows.verified)

    def _generate(self, run: "RowsRun", progress: RowsProgress) -> bool:
        """Generate all rows; return whether Ctrl-C ended it early."""
        with Interruption() as interruption:
            for tally in run.steps(interruption.requested):
                progress.show(tally)
            return interruption.requested()

    def _verify(self, run: "RowsRun", model: "BaseModel", status: Status) -> None:
        from genx.engine.rows.verify import differences

        remembered = run.remembered()
        if not self._rows.verified:
            return
        status.show("generating rows again, alone")
        differing = list(differences(model, remembered, batch_invariant=self._rows.batch_invariant))
        for line in differing:
            status.warn(line)
        if not differing:
            status.hide()
            self._terminal.say(f"genx: {len(remembered):,} rows generated again, alone: the same tokens")


def _same_for_every_batch(wanted: ModelRequest) -> ModelRequest:
    """The model with the operations whose results `FixedBlocks` keeps the same."""
    if wanted.kernels == "native":
        raise ArgumentError("{batch_invariant} and {kernels} native are both given; it needs {kernels} torch; drop one")
    return replace(wanted, kernels="torch")


def _exit_code(tally: "Tally") -> int:
    if not tally.failed:
        return ExitCode.OK
    return ExitCode.FAILED if tally.failed == tally.rows else ExitCode.SOME_ROWS_FAILED
