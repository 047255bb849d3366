"""The model that genx carries: small, found from anywhere, the default, and it ends its stories."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from genx import load_model, load_tokenizer
from genx.checkpoint import embedded_model, resolve_model
from storyteller.card import card
from tests.cli.in_process import run_genx
from tests.storyteller.conftest import SCRIPTS

FOLDER = embedded_model()
MOST_BYTES = 6_000_000


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an empty models folder and no variable that names a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENX_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("GENX_MODEL", raising=False)
    return tmp_path


def test_it_is_small_and_says_what_it_is() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    model = load_model(FOLDER)
    assert sum(parameter.numel() for parameter in model.parameters()) == results["parameters"]
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == card(results)


def test_it_is_better_than_a_5_gram_model_and_ends_its_stories() -> None:
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    for row in results["losses"]:
        assert row["model"]["nats_per_token"] < row["5-gram"]["nats_per_token"]
    assert results["generated"]["ended"] > 0.95


@pytest.mark.parametrize("text", ["Once upon a time, there was a fox.", "", " Zwei Füchse 🦊\n\n\ttabs", "a" * 300])
def test_the_tokenizer_gives_back_any_text(text: str) -> None:
    tokenizer = load_tokenizer(FOLDER)
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id == tokenizer.eos_token_ids[0]
    assert tokenizer.decode(ids[1:]) == text


def test_it_is_the_default_and_its_name_works_from_anywhere(elsewhere: Path) -> None:
    assert resolve_model("storyteller") == FOLDER
    default = json.loads(run_genx("run", "Once upon a time", "--json", "-n", "300").text)
    named = json.loads(run_genx("run", "Once upon a time", "--json", "-n", "300", "-m", "storyteller").text)
    assert default["text"] == named["text"]
    assert default["finish_reason"] == "eos"
    assert default["new_tokens"] > 50


def test_the_default_is_no_folder_that_happens_to_have_its_name(elsewhere: Path) -> None:
    (elsewhere / "storyteller").mkdir()
    assert run_genx("run", "Once", "-n", "1").status == 0
    assert run_genx("run", "Once", "-n", "1", "-m", "storyteller").status == 1


def test_greedy_text_is_that_of_transformers(elsewhere: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    network = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
    for prompt in ("Once upon a time", "One day, a little robot"):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = network.generate(ids, max_new_tokens=60, do_sample=False)[0, ids.size(1) :]
        expected = tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert run_genx("run", prompt, "-n", "60").text == expected


def test_in_a_process_of_its_own_and_a_pipe(elsewhere: Path) -> None:
    command = [sys.executable, "-m", "genx", "run", "Once upon a time"]
    done = subprocess.run(command, capture_output=True, check=True, cwd=elsewhere, text=True)
    assert done.stderr == ""
    assert done.stdout == run_genx("run", "Once upon a time").text


def test_rows_bench_and_kv_size_take_it_too(elsewhere: Path) -> None:
    rows = run_genx("run", "-i", "-", "-n", "3", stdin=b"One day\nThe dog\n")
    assert [json.loads(line)["error"] for line in rows.text.splitlines()] == [None, None]
    assert json.loads(run_genx("kv-size", "storyteller", "--json").text)
    shown = json.loads(run_genx("models", "--json").text)["models"]
    assert [(model["name"], model["place"]) for model in shown] == [("storyteller", "genx")]


def test_the_wheel_carries_it(tmp_path: Path) -> None:
    pyproject = (SCRIPTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'packages = ["genx"]' in pyproject
    ignored = subprocess.run(
        ["git", "check-ignore", *map(str, FOLDER.iterdir())], capture_output=True, cwd=SCRIPTS.parent, check=False
    )
    assert ignored.stdout == b""
