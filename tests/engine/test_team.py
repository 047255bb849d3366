"""Several processes that generate one text."""

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from genx import load_model
from genx.core.base_model import BaseModel
from genx.core.generation import ContextExceeded, Sampled
from genx.engine import team as team_module
from genx.engine.arithmetic import Arithmetic
from genx.engine.follower import LOADED, READY, Post
from genx.engine.loading import LoadedModel
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.engine.stream import generation_steps
from genx.engine.team import Follower, Team
from genx.errors import ArgumentError, GenxError
from tests.architectures import CONTEXT, make_tiny

CPU = Arithmetic("cpu", "float32", "float32", "torch", "")
NOTHING: frozenset[int] = frozenset()


def never(error: GenxError) -> None:
    raise AssertionError(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("mistral", tmp_path_factory.mktemp("team")).folder


@pytest.fixture(scope="class")
def loaded(folder: Path) -> Iterator[LoadedModel]:
    """The model, computed by two processes."""
    with Team(2, never) as team:
        yield team.load(folder, CPU, 1, None)
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def whole(folder: Path) -> BaseModel:
    return load_model(folder, dtype=torch.float32)


TASKS = {
    "greedy": (Prompt((5, 6, 7)), GenerationSettings(max_new_tokens=9)),
    "sampled": (Prompt((5, 6, 7)), GenerationSettings(max_new_tokens=9, do_sample=True, top_p=0.9, seed=3)),
    "hidden tokens": (Prompt((1, 5, 6, 7), (0, 1, 0, 1)), GenerationSettings(max_new_tokens=3)),
    "without a cache": (Prompt((5, 6)), GenerationSettings(max_new_tokens=3, use_cache=False)),
    "past the context": (Prompt(tuple(range(CONTEXT - 2))), GenerationSettings(max_new_tokens=5)),
    "ended early": (Prompt((5, 6, 7)), GenerationSettings(max_new_tokens=9, eos_token_ids=tuple(range(0, 97, 3)))),
}


def tokens(events: list[object]) -> list[int]:
    return [int(event.token_ids) for event in events if isinstance(event, Sampled)]


class TestSteps:
    """One team for all: torch has one group of processes in a process."""

    @pytest.mark.parametrize("task", TASKS)
    def test_texts_are_those_of_one_process(self, loaded: LoadedModel, whole: BaseModel, task: str) -> None:
        """Of one team one after the other: each text leaves the others where they were."""
        prompt, settings = TASKS[task]
        assert loaded.steps is not None
        several = list(loaded.steps(loaded.model, prompt, settings, NOTHING))
        one = list(generation_steps(whole, prompt, settings, NOTHING))
        assert [type(event) for event in several] == [type(event) for event in one]
        assert tokens(several) == tokens(one)
        assert (task == "past the context") == any(isinstance(event, ContextExceeded) for event in several)

    def test_a_text_may_be_left_at_any_step(self, loaded: LoadedModel, whole: BaseModel) -> None:
        prompt, settings = TASKS["greedy"]
        assert loaded.steps is not None
        begun = loaded.steps(loaded.model, prompt, settings, NOTHING)
        for _ in range(4):
            next(begun)
        begun.close()  # type: ignore[attr-defined]
        again = list(loaded.steps(loaded.model, prompt, settings, NOTHING))
        assert tokens(again) == tokens(list(generation_steps(whole, prompt, settings, NOTHING)))

    def test_an_argument_that_is_refused_leaves_the_others_where_they_were(self, loaded: LoadedModel) -> None:
        assert loaded.steps is not None
        with pytest.raises(ArgumentError, match="pad_token_id"):
            next(
                loaded.steps(
                    loaded.model, Prompt((5,)), GenerationSettings(eos_token_ids=(1,), pad_token_id=1000), NOTHING
                )
            )
        assert len(list(loaded.steps(loaded.model, Prompt((5,)), GenerationSettings(max_new_tokens=1), NOTHING))) == 2

    def test_figures_are_of_the_whole_model_and_of_one_process(self, loaded: LoadedModel, whole: BaseModel) -> None:
        assert loaded.parameters == sum(parameter.numel() for parameter in whole.parameters())
        assert 0.5 < loaded.weight_bytes / (4 * loaded.parameters) < 0.51


def test_a_process_that_ends_is_an_error_of_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the backend does not fail by itself, it is noticed all the same."""
    monkeypatch.setattr(team_module, "_NOTICING_S", 0.05)
    noticed: list[str] = []
    hang = threading.Event()

    def on_hang(error: GenxError) -> None:
        noticed.append(str(error))
        hang.set()

    with Team(2, on_hang) as team:
        loaded = team.load(folder, CPU, 1, None)
        steps = team.steps(loaded.model, *TASKS["greedy"], NOTHING)
        next(steps)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        with pytest.raises(GenxError, match=r"^process 2 of 2 has ended with signal SIGKILL$"):
            list(steps)
        assert hang.wait(30)
    assert noticed == ["process 2 of 2 has ended with signal SIGKILL"]


def test_what_a_process_cannot_load_is_told(tmp_path: Path) -> None:
    follower = Follower(0, 1)
    try:
        follower.send(Post(0, 1, tmp_path / "store", str(tmp_path / "nowhere"), None, "cpu", 1))
        follower.wait_for(READY)
        with pytest.raises(GenxError, match=r"^process 1 of 1: .*nowhere"):
            follower.wait_for(LOADED)
    finally:
        follower.end(10)


def test_heads_that_cannot_be_divided_are_refused(folder: Path) -> None:
    with Team(3, never) as team, pytest.raises(ArgumentError, match=r"num_key_value_heads of 2 .* allowed: 1, 2$"):
        team.load(folder, CPU, None, None)
    assert not multiprocessing.active_children()
