"""Decode steps of fixed shapes, recorded and replayed as a CUDA graph would be, on the CPU."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from genx import cache_rules
from genx.core import fixed_shapes, loop
from genx.core.base_model import BaseModel
from genx.core.graphs import GraphedSteps, why_not_captured, why_not_fixed
from genx.errors import GenxWarning
from tests.architectures import CONTEXT, assert_near, make_tiny, prompt


class Recorder(TorchDispatchMode):
    """Records operations with their tensors and numbers; `replay` runs the same ones again, on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # else a view, or written in place
                    old.copy_(new)


class Captures:
    """Stands for the capture of CUDA graphs, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.count += 1
        run()
        recorder = Recorder()
        with recorder:
            result = run()

        def replay() -> Tensor:
            self.replays += 1
            recorder.replay()
            return result

        return replay


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    """Few slots, so that a text comes to have more; and the loop replays wherever it could on a GPU."""
    found = Captures()
    monkeypatch.setattr(fixed_shapes, "SHORTEST", 8)
    monkeypatch.setattr(loop, "capture_for", lambda model: found if why_not_fixed(model) is None else None)
    return found


@torch.no_grad()
def test_replayed_steps_give_the_logits_of_steps_in_full(model: BaseModel, captures: Captures) -> None:
    """To the end of the context: past every window, and over several numbers of slots."""
    if why_not_fixed(model):
        pytest.skip(str(why_not_fixed(model)))
    steps = GraphedSteps(model, captures)
    x = prompt()
    _, cache = model(x, use_cache=True)
    _, other = model(x, use_cache=True)
    for position in range(x.size(1), CONTEXT):
        token = prompt(length=1, seed=position)
        taken = steps(token, other)
        assert taken is not None
        logits, other = taken
        wanted, cache = model(token, cache, use_cache=True)
        assert_near(logits, wanted[:, -1])
    assert captures.count == 3  # 16, 32 and 64 slots


def test_the_loop_takes_every_step_but_the_first_so(model: BaseModel, captures: Captures) -> None:
    """And past the context none, where every step reads the window again."""
    x, new = prompt(), CONTEXT - 13 + 4
    found = model.generate(x, new, do_sample=False)
    assert captures.replays == (0 if why_not_fixed(model) else CONTEXT - 13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "capture_for", lambda model: None)
        assert found.tolist() == model.generate(x, new, do_sample=False).tolist()


def test_hidden_tokens_and_no_cache_are_left_to_steps_in_full(model: BaseModel, captures: Captures) -> None:
    x = prompt()
    mask = torch.ones_like(x)
    mask[0, :3] = 0
    model.generate(x, 3, do_sample=False, attention_mask=mask)
    model.generate(x, 3, do_sample=False, use_cache=False)
    assert captures.count == 0


@torch.no_grad()
def test_one_cache_serves_steps_of_both_kinds(model: BaseModel, captures: Captures) -> None:
    """What a replayed step leaves is a cache like any other: gone on from, forked, and read from twice."""
    if why_not_fixed(model):
        pytest.skip(str(why_not_fixed(model)))
    steps = GraphedSteps(model, captures)
    first, second, third = (prompt(length=1, seed=seed) for seed in (1, 2, 3))
    _, begun = model(prompt(), use_cache=True)
    taken = steps(first, begun)
    assert taken is not None
    forked = [entry.fork(CONTEXT) for entry in taken[1]]
    then = model(second, taken[1], use_cache=True)
    last = steps(third, then[1])
    assert last is not None
    whole = model(torch.cat((prompt(), first, second, third), dim=1))[0]
    assert_near(then[0][:, -1], whole[:, -2])
    assert_near(last[0], whole[:, -1])
    assert_near(model(second, forked, use_cache=True)[0][:, -1], whole[:, -2])


def test_the_host_decides_only_where_it_is_said(model: BaseModel) -> None:
    """The meta device has no values: what asks for one there would wait for a GPU, and cannot be captured."""
    step = fixed_shapes.FixedPositions(2, torch.zeros(1, 1, dtype=torch.int64, device="meta"))
    on_meta = copy.deepcopy(model).to("meta")
    heads, size = model.config.num_key_value_heads, model.config.head_dim
    memory = [torch.empty(2, heads, window or CONTEXT, size, device="meta") for window in model.layer_windows]
    entries = [fixed_shapes.FixedEntry(keys, torch.empty_like(keys), step, 16) for keys in memory]
    token = torch.zeros(2, 1, dtype=torch.int64, device="meta")
    why = why_not_fixed(model)
    if why is None:
        logits, _ = on_meta(token, entries, use_cache=True, logits_to_keep=1)
        assert logits.shape == (2, 1, model.config.vocab_size)
    else:
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            on_meta(token, entries, use_cache=True, logits_to_keep=1)


def test_memory_that_grows_is_captured_anew(
    captures: Captures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_rules, "WHOLE_UP_TO", 8)
    monkeypatch.setattr(cache_rules, "GROWTH", 5)
    model = make_tiny("llama", tmp_path).model()
    found = model.generate(prompt(), 20, do_sample=False)
    assert captures.count == 6  # for room for 15, 20, 25, 30 and 35 positions; 20 are more than 16 slots
    monkeypatch.undo()
    assert found.tolist() == model.generate(prompt(), 20, do_sample=False).tolist()


def test_what_cannot_be_captured_runs_in_full(captures: Captures, tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path).model()

    def fails(run: object) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "capture_for", lambda model: fails)
        with pytest.warns(
            GenxWarning, match="by operation, no graph holds them: operation not permitted .* capturing$"
        ):
            found = model.generate(prompt(), 9, do_sample=False)
    assert found.tolist() == model.generate(prompt(), 9, do_sample=False).tolist()
    assert why_not_captured(model) == "graphs are for CUDA"
