"""One question about one model, answered: the bytes, whether they fit, and what would."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from genx.errors import UsageError
from genx.kv_size.allocation import Request
from genx.kv_size.engines import ENGINES, Size, size
from genx.kv_size.layers import CROSS, Model
from genx.kv_size.quantities import NO_RESERVE, Memory, Reserve
from genx.kv_size.solve import Budget, largest_batch, largest_context, most_copies, required_bytes

_TABLE_BATCHES = (1, 2, 4, 8, 16, 32)
_TABLE_ROWS = 6


@dataclass(frozen=True)
class Question:
    """What is to be worked out.

    Attributes:
        name: how the answer calls the model.
        model: its caches.
        request: the sequences, the element types and the engine.
        memory: to fit into, None if nothing is to fit.
        weights: bytes of the model's weights on all devices together, None if they are left out.
        reserve: memory kept free.
        is_mix: the sequences have lengths of their own, so that there is no one context to solve for.
    """

    name: str
    model: Model
    request: Request
    memory: Memory | None = None
    weights: int | None = None
    reserve: Reserve = NO_RESERVE
    is_mix: bool = False


@dataclass(frozen=True)
class Cell:
    """Whether so many sequences of so many tokens fit."""

    tokens: int
    batch: int
    total_bytes: int
    fits: bool


@dataclass(frozen=True)
class Fit:
    """How the cache stands to a memory.

    Attributes:
        budget: of one device.
        required: what the cache takes of it.
        max_tokens: the largest context at this batch; None for a mix, or where the slots fix it.
        max_batch: the most sequences of this length; None likewise.
        max_copies: how many times the whole mix fits; None if it is no mix.
        table: contexts by batches.
    """

    budget: Budget
    required: int
    max_tokens: int | None
    max_batch: int | None
    max_copies: int | None
    table: Sequence[Cell]

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return self.required <= self.budget.for_cache

    @property
    def shortfall(self) -> int:
        """Bytes that are missing, 0 if it fits."""
        return max(0, self.required - self.budget.for_cache)


@dataclass(frozen=True)
class Answer:
    """What came out.

    Attributes:
        question: what was asked.
        size: by the engine's rule, on the fullest device.
        floor_bytes: keys and values by the rule `ideal`.
        full_bytes: keys and values if no window counted.
        bytes_per_token: of one more token of one sequence at this length; where the engine grows by more than a token
            at once, averaged over such a step.
        replicated: tensor parallelism goes beyond the key/value heads, so that devices hold copies.
        fit: how that stands to the memory, None if none was given.
        warnings: what the user should know about the request.
    """

    question: Question
    size: Size
    floor_bytes: int
    full_bytes: int
    bytes_per_token: int
    replicated: bool
    fit: Fit | None
    warnings: tuple[str, ...]


def answer(question: Question) -> Answer:
    """Work a question out.

    Raises:
        UsageError: the request goes beyond what the model or the engine can do.
    """
    model, request = question.model, question.request
    replicated = _is_replicated(model, request.tensor_parallel)
    warnings = _check_positions(question)
    if replicated:
        warnings += (
            f"--tp {request.tensor_parallel} is more than the key/value heads of {question.name}: "
            "GPUs keep copies of the same cache",
        )
    if any(layer.kind == CROSS for layer in model.layers) and not request.encoder_tokens:
        raise UsageError(f"{question.name} has an encoder; give the length of its output with --encoder-tokens")
    return Answer(
        question=question,
        size=size(model, request),
        floor_bytes=size(model, replace(request, engine="ideal")).kv_bytes,
        full_bytes=size(model, replace(request, engine="full")).kv_bytes,
        bytes_per_token=_bytes_per_token(model, request),
        replicated=replicated,
        fit=None if question.memory is None else _fit(question, question.memory),
        warnings=warnings,
    )


def budget_of(question: Question, memory: Memory) -> Budget:
    """What one device has, and what of it is spoken for.

    Raises:
        UsageError: there are several devices, and --tp and --pp do not spread the model over them.
    """
    shares = question.request.tensor_parallel * question.request.pipeline_parallel
    if memory.devices not in (1, shares) and shares != 1:
        raise UsageError(
            f"--memory names {memory.devices} devices and --tp x --pp is {shares}; allowed: as many devices as that, "
            "or --tp 1 --pp 1 for memory that is one pool"
        )
    on_device = memory.total if shares == 1 else memory.each
    weights = -(-(question.weights or 0) // shares)
    return Budget(on_device, weights, question.reserve.of(on_device))


def _fit(question: Question, memory: Memory) -> Fit:
    model, request = question.model, question.request
    budget = budget_of(question, memory)
    slots_fixed = request.engine == "llama.cpp" and request.slots is not None
    return Fit(
        budget=budget,
        required=required_bytes(model, request),
        max_tokens=None if question.is_mix else largest_context(model, request, budget),
        max_batch=None if question.is_mix or slots_fixed else largest_batch(model, request, budget),
        max_copies=most_copies(model, request, budget) if question.is_mix else None,
        table=() if question.is_mix or slots_fixed else _table(model, request, budget),
    )


def _table(model: Model, request: Request, budget: Budget) -> list[Cell]:
    """Contexts that halve from the largest one asked for or made for, by batches that double."""
    largest = max(request.longest, model.positions or 0)
    contexts = sorted({largest >> halvings for halvings in range(_TABLE_ROWS) if largest >> halvings})
    cells = []
    for tokens in contexts:
        for batch in _TABLE_BATCHES:
            required = required_bytes(model, replace(request, sequences=((batch, tokens),)))
            cells.append(Cell(tokens, batch, required, required <= budget.for_cache))
    return cells


def _check_positions(question: Question) -> tuple[str, ...]:
    model, longest = question.model, question.request.longest
    if model.positions is None or longest <= model.positions:
        return ()
    if model.learned_positions:
        raise UsageError(
            f"--tokens is {longest:,}; {question.name} has {model.positions:,} learned positions and none beyond; "
            f"allowed: up to {model.positions:,}"
        )
    return (f"{longest:,} tokens are beyond the {model.positions:,} that {question.name} was made for",)


def _bytes_per_token(model: Model, request: Request) -> int:
    step = ENGINES[request.engine].step(request)
    here, there = (
        size(model, replace(request, sequences=((1, tokens),))).kv_bytes
        for tokens in (request.longest, request.longest + step)
    )
    return (there - here) // step


def _is_replicated(model: Model, tensor_parallel: int) -> bool:
    return tensor_parallel > 1 and any(0 < layer.kv_heads < tensor_parallel for layer in model.layers)
