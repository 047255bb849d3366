"""A bar chart of genx kv-size: what is taken at each context, with the weights and the memory drawn in."""

from dataclasses import replace
from typing import TYPE_CHECKING

from genx.kv_size.engines import size
from genx.kv_size.plan import Question, budget_of
from genx.messages import printable

if TYPE_CHECKING:
    from genx.cli.kv_size_view import View

_BARS = 8
_MOST_COLUMNS = 60


def draw(question: Question, view: "View") -> str:
    """A bar a context: `=` weights, `#` cache, `|` the memory; contexts halve from the larger of request and model."""
    request, model = question.request, question.model
    largest = max(request.longest, model.positions or 0) or 1
    contexts = sorted({largest >> halvings for halvings in range(_BARS) if largest >> halvings})
    taken = [_total(question, tokens) for tokens in contexts]
    budget = None if question.memory is None else budget_of(question, question.memory)
    weights = budget.weights + budget.reserve if budget else question.weights or 0
    labels = [f"{tokens:,}" for tokens in contexts]
    sizes = [view.bytes(weights + count) for count in taken]
    room = min(view.width, _MOST_COLUMNS + 30) - max(map(len, labels)) - max(map(len, sizes)) - 3
    if room < 4:
        return ""
    scale = max(weights + taken[-1], budget.memory if budget else 0) or 1
    limit = None if budget is None else round(room * budget.memory / scale)
    cells = ("▒", "█", "│") if view.unicode else ("=", "#", "|")
    title = f"{printable(question.name)}, {request.engine}, batch {request.batch:,}: {cells[1]} cache"
    title += f", {cells[0]} weights and reserve" if weights else ""
    lines = [title + (f", {cells[2]} memory {view.bytes(budget.memory)}" if budget else "")]
    for label, count, text in zip(labels, taken, sizes, strict=True):
        bar = _bar(round(room * weights / scale), round(room * (weights + count) / scale), limit, room, cells)
        lines.append(f"{label:>{max(map(len, labels))}} {bar} {text}")
    return "\n".join(lines) + "\n"


def _bar(weights: int, end: int, limit: int | None, room: int, cells: tuple[str, str, str]) -> str:
    full, part, line = cells[1], cells[0], cells[2]
    drawn = list(part * weights + full * (end - weights) + " " * (room + 1 - end))
    if limit is not None:
        drawn[limit] = line
    return "".join(drawn)


def _total(question: Question, tokens: int) -> int:
    request = replace(question.request, sequences=((question.request.batch, tokens),))
    found = size(question.model, request)
    return found.kv_bytes + (found.state_bytes or 0)
