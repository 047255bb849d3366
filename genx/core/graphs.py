"""Decode steps replayed as a CUDA graph: one launch a token instead of some hundred.

A graph belongs to the memory of one text and to a number of slots, and is captured anew when either changes; capturing
costs about as much as four steps. Shapes: see the legend in genx/core/base_model.py.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genx.core.cache import Cache, LayerCache
from genx.core.fixed_shapes import FixedEntry, FixedPositions, slots_for
from genx.core.positions import Positions
from genx.core.rope import longest_short_text
from genx.errors import GenxWarning

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

Run = Callable[[], Tensor]
Capture = Callable[[Run], Run]
Memory = list[tuple[Tensor, Tensor]]


def captured(run: Run) -> Run:
    """What replays `run` as a CUDA graph: it reads and writes the same memory each time, and its result lies there."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries set themselves up in their first runs, which no graph can hold
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def capture_for(model: "BaseModel") -> Capture | None:
    """How the model's decode steps are captured; None where they are not."""
    return captured if why_not_captured(model) is None else None


def why_not_captured(model: "BaseModel") -> str | None:
    """Why the model's decode steps are launched operation by operation, for a person; None where a graph holds them."""
    if model.device.type != "cuda":
        return "graphs are for CUDA"
    return why_not_fixed(model)


def describe_steps(model: "BaseModel") -> str:
    """How a GPU is given the model's decode steps, for a person; empty where there is none."""
    if model.device.type == "cpu":
        return ""
    why = why_not_captured(model)
    return "a CUDA graph for each step" if why is None else f"operation by operation: {why}"


def why_not_fixed(model: "BaseModel") -> str | None:
    """Why the model's decode step cannot be the same operations at every position; None where it can."""
    if longest_short_text(model.config) is not None:
        return "LongRoPE turns by the length of the text"
    return next((reason for module in model.modules() if (reason := getattr(module, "host_decides", None))), None)


class GraphedSteps:
    """Takes decode steps of one text after another, each with the memory of its own cache."""

    def __init__(self, model: "BaseModel", capture: Capture) -> None:
        """
        Args:
            model: one for which `why_not_fixed` has no reason.
            capture: makes of a step what takes it.
        """
        self._model = model
        self._capture: Capture | None = capture
        self._memory: Memory = []
        self._slots = 0
        self._replay: Run | None = None
        self._token = self._position = torch.empty(0)

    def __call__(self, token: Tensor, cache: Cache | None) -> tuple[Tensor, list[LayerCache]] | None:
        """Read one token a row.

        Args:
            token: [B, 1].
            cache: what was read before; the same number of tokens in every row.

        Returns:
            The logits [B, V], which the next step overwrites, and the next cache. None where this cannot be: nothing
            was read before, tokens are hidden, or the step could not be captured.
        """
        entries = [entry for entry in cache or () if isinstance(entry, LayerCache) and entry.rows is None]
        if self._capture is None or not entries or len(entries) != len(cache or ()):
            return None
        seen = entries[0].seen
        step = Positions(token.size(0), 1, token.device, seen)
        reserved = [entry.reserve_more(step) for entry in entries]
        ready = [place for place in reserved if place is not None]
        if len(ready) != len(entries):
            return None
        memory = [(keys, values) for keys, values, _ in ready]
        slots = slots_for(seen + 1)
        if self._replay is None or slots != self._slots or not _is_same(memory, self._memory):
            self._begin(token, memory, slots)
        self._token.copy_(token)
        self._position.fill_(seen)
        if self._replay is None and not self._captures():
            return None
        assert self._replay is not None
        return self._replay(), [following for _, _, following in ready]

    def _begin(self, token: Tensor, memory: Memory, slots: int) -> None:
        self._replay = None  # frees the old graph's memory before there is a new one
        self._memory, self._slots = memory, slots
        self._token = torch.empty_like(token)
        self._position = token.new_empty((1, 1), dtype=torch.int64)

    def _captures(self) -> bool:
        assert self._capture is not None
        try:
            self._replay = self._capture(self._run)
        except RuntimeError as error:
            self._capture = None
            why = str(error).splitlines()[0]
            warnings.warn(f"steps run operation by operation, no graph holds them: {why}", GenxWarning, stacklevel=2)
            return False
        return True

    def _run(self) -> Tensor:
        step = FixedPositions(self._token.size(0), self._position)
        entries = [FixedEntry(keys, values, step, self._slots) for keys, values in self._memory]
        logits, _ = self._model(self._token, entries, use_cache=True, logits_to_keep=1)  # [B, 1, V]
        return logits[:, -1]  # type: ignore[no-any-return]


def _is_same(memory: Memory, other: Memory) -> bool:
    pairs = zip(memory, other, strict=False)
    return len(memory) == len(other) and all(a is c and b is d for (a, b), (c, d) in pairs)
