"""scripts/train_storyteller from prompts to a packaged model, and that stopping changes nothing."""

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch

from genx import load_model, load_tokenizer
from storyteller.corpus import grammar_stories
from storyteller.rows import Stories
from storyteller.tokenizer import END, train_tokenizer
from storyteller.training import Plan, Training
from tests.cli.in_process import run_genx
from tests.fixtures.folders import assert_same_weights
from tests.storyteller.conftest import SCRIPTS

SMALL = Plan(vocabulary=400, hidden=24, inner=40, layers=2, heads=3, kv_heads=1, context=64, rows=2, steps=6, warm_up=2)
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in vars(SMALL).items()]


@pytest.fixture(scope="module")
def stories() -> tuple[Stories, int]:
    texts = [story.text for story in grammar_stories(12, seed=1)]
    tokenizer = train_tokenizer(texts, SMALL.vocabulary)
    end_id = tokenizer.token_to_id(END)
    assert end_id is not None
    return Stories(texts, tokenizer), end_id


def test_rows_hold_each_story_whole_and_the_same_for_a_seed() -> None:
    stories = Stories.__new__(Stories)
    stories.ids = [[0, *range(start, start + 4), 0] for start in (10, 20, 30, 40, 50)]
    rows = [row.tolist() for row in stories.packed(12, seed=3)]
    assert all(len(row) == 13 and row[0] == 0 for row in rows)
    for story in stories.ids[:-1]:
        whole = [row for row in rows if str(story[:-1])[1:-1] in str(row)]
        assert whole or story[1] == rows[-1][-1] // 10 * 10
    assert rows == [row.tolist() for row in stories.packed(12, seed=3)]


def test_a_run_that_was_stopped_ends_with_the_same_weights(stories: tuple[Stories, int], tmp_path: Path) -> None:
    whole = Training(SMALL, *stories)
    losses = list(whole.run(10))
    assert whole.is_over
    first = Training(SMALL, *stories)
    some = list(first.run(4))
    first.save(tmp_path / "state")
    second = Training(SMALL, *stories)
    second.resume(tmp_path / "state")
    assert some + list(second.run(10)) == losses
    assert second.tokens == whole.tokens == 6 * 2 * 64
    for name, parameter in whole.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], parameter, rtol=0, atol=0)
    assert losses[-1] < losses[0]


def test_a_state_of_another_plan_is_refused(stories: tuple[Stories, int], tmp_path: Path) -> None:
    Training(SMALL, *stories).save(tmp_path / "state")
    other = Plan(**{**vars(SMALL), "seed": 2})
    with pytest.raises(ValueError, match="allowed: the same plan"):
        Training(other, *stories).resume(tmp_path / "state")


@pytest.fixture
def script() -> ModuleType:
    loader = SourceFileLoader("train_storyteller", str(SCRIPTS / "train_storyteller"))
    spec = importlib.util.spec_from_loader("train_storyteller", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_from_prompts_to_a_model_that_genx_runs(script: ModuleType, tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "packaged"

    def step(name: str, *more: str) -> None:
        assert script.main([name, "--out", str(out), "--count", "40", "--writer", "storyteller", *FLAGS, *more]) == 0

    step("prompts")
    assert len((out / "prompts.jsonl").read_text().splitlines()) == 40
    answers = [{"id": number, "text": " Then a big cat came to the house.", "error": None} for number in range(8)]
    (out / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    step("corpus")
    step("train")
    step("report", "--stories", "2")
    step("package", "--target", str(target))

    results = json.loads((target / "results.json").read_text())
    assert (results["step"], results["tokens"]) == (6, 6 * 2 * 64)
    assert "| the grammar's (" in (target / "README.md").read_text()
    packaged = load_model(target)
    trained = load_model(out / "model" / "state")
    assert_same_weights(packaged, trained.half().float())
    assert load_tokenizer(target).eos_token_ids == (0,)
    ran = run_genx("run", "Once upon a time", "-m", str(target), "-n", "5", "--json")
    assert (ran.status, len(json.loads(ran.text)["ids"])) == (0, 5)
