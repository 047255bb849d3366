"""Answers of genx kv-size for people: a table, two lines of working a model, what fits, a chart."""

from collections.abc import Sequence

from genx.cli.layout import Layout
from genx.cli.terminal import Terminal
from genx.kv_size.plan import Answer, Fit, Question
from genx.kv_size.quantities import human_bytes
from genx.kv_size.report import dtype_name
from genx.messages import printable

_KEY_FIELDS = (
    "num_hidden_layers",
    "decoder_layers",
    "decoder_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "sliding_window",
    "sliding_window_pattern",
    "attention_chunk_size",
    "layer_types",
)


class View:
    """Lays answers out for the width, the characters and the colours that the terminal has."""

    def __init__(self, terminal: Terminal, *, si: bool = False, ascii_only: bool = False) -> None:
        self._si = si
        self._layout = Layout(terminal, ascii_only=ascii_only)
        self.width = self._layout.width
        self.unicode = self._layout.unicode

    def text(self, answers: Sequence[Answer], *, explain: bool = False, chart: bool | None = None) -> str:
        """Everything, as text that ends with a line feed.

        Args:
            explain: show every field, group and rule instead of two lines.
            chart: draw the cache against the context; None: with a memory and one model.
        """
        ordered = sorted(answers, key=lambda found: (_total(found), found.question.name))
        parts = [self._rows(ordered)]
        for found in _one_a_model(ordered):
            parts.append("\n".join(self._working(found, explain=explain)) + "\n")
        parts += [self._fit(found, found.fit) for found in ordered if found.fit is not None]
        parts += [self._fit_table(found.fit) for found in _one_a_model(ordered) if found.fit is not None]
        wanted = chart if chart is not None else len(answers) == 1 and answers[0].fit is not None
        if wanted:
            from genx.cli.kv_size_chart import draw

            parts += [draw(found.question, self) for found in _one_a_model(ordered) if not found.question.is_mix]
        return "\n".join(part for part in parts if part)

    def bytes(self, count: int | None) -> str:
        """A size in the unit that was asked for."""
        return "unknown" if count is None else human_bytes(count, si=self._si)

    def _rows(self, answers: Sequence[Answer]) -> str:
        columns = self._columns(answers)
        rows = [[printable(column[1][index]) for column in columns] for index in range(len(answers))]
        titles = [column[0] for column in columns]
        if not self.unicode:
            rows = [[cell.encode("ascii", "backslashreplace").decode("ascii") for cell in row] for row in rows]
        return self._layout.table_or_lines(titles, rows)

    def _columns(self, answers: Sequence[Answer]) -> list[tuple[str, list[str]]]:
        columns = [
            ("model", [found.question.name for found in answers]),
            ("tokens", [_tokens(found.question) for found in answers]),
            ("batch", [f"{found.question.request.batch:,}" for found in answers]),
            ("kv-dtype", [dtype_name(found) for found in answers]),
            ("engine", [found.question.request.engine for found in answers]),
            ("kv cache", [self.bytes(found.size.kv_bytes) for found in answers]),
            ("bytes", [f"{found.size.kv_bytes:,}" for found in answers]),
            ("a token", [self.bytes(found.bytes_per_token) for found in answers]),
        ]
        if any(found.size.state_bytes != 0 for found in answers):
            columns.append(("state", [self.bytes(found.size.state_bytes) for found in answers]))
        if any(found.question.model.has_windows for found in answers):
            columns.append(("floor", [self.bytes(found.floor_bytes) for found in answers]))
            columns.append(("no window", [self.bytes(found.full_bytes) for found in answers]))
        if any(found.fit is not None for found in answers):
            columns.append(("weights", [self._weights(found.question) for found in answers]))
            columns.append(("fits", ["yes" if found.fit and found.fit.fits else "no" for found in answers]))
        return columns

    def _weights(self, question: Question) -> str:
        return "none" if question.weights is None else self.bytes(question.weights)

    def _working(self, found: Answer, *, explain: bool) -> list[str]:
        from genx.cli.kv_size_working import explanation, formula_line, settings_line

        if explain:
            return explanation(found, self.bytes)
        return [settings_line(found, _KEY_FIELDS), formula_line(found)]

    def _fit(self, found: Answer, fit: Fit) -> str:
        budget = fit.budget
        spoken = f"{self.bytes(budget.memory)} - weights {self.bytes(budget.weights)} - reserve "
        spoken += f"{self.bytes(budget.reserve)} leaves {self.bytes(budget.for_cache)}"
        verdict = "fits" if fit.fits else f"does not fit: {fit.shortfall:,} bytes ({self.bytes(fit.shortfall)}) short"
        lines = [f"{printable(found.question.name)}, {_tokens(found.question)} tokens: {verdict}; {spoken}"]
        if fit.max_copies is not None:
            lines.append(f"the whole mix fits {fit.max_copies:,} times")
        if fit.max_tokens is not None:
            lines.append(f"largest context at batch {found.question.request.batch:,}: {fit.max_tokens:,} tokens")
        if fit.max_batch is not None:
            lines.append(f"largest batch at {found.question.request.longest:,} tokens: {fit.max_batch:,}")
        return "\n".join(lines) + "\n"

    def _fit_table(self, fit: Fit) -> str:
        batches = sorted({cell.batch for cell in fit.table})
        sizes = {(cell.tokens, cell.batch): cell for cell in fit.table}
        rows = [
            [
                f"{tokens:,}",
                *(self.bytes(cell.total_bytes) if (cell := sizes[tokens, batch]).fits else "-" for batch in batches),
            ]
            for tokens in sorted({cell.tokens for cell in fit.table})
        ]
        titles = ["tokens \\ batch", *(str(batch) for batch in batches)]
        if not rows or not self._layout.fits(titles, rows):
            return ""
        return self._layout.table(titles, rows, left=0)


def _tokens(question: Question) -> str:
    if question.is_mix:
        return " + ".join(f"{count:,} x {tokens:,}" for count, tokens in question.request.sequences)
    return f"{question.request.longest:,}"


def _total(found: Answer) -> int:
    return found.size.kv_bytes + (found.size.state_bytes or 0)


def _one_a_model(answers: Sequence[Answer]) -> list[Answer]:
    """The largest answer for each model and engine, in the order of the table."""
    largest: dict[tuple[str, str], Answer] = {}
    for found in answers:
        key = (found.question.name, found.question.request.engine)
        largest.pop(key, None)
        largest[key] = found
    return list(largest.values())
