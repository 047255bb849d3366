"""genx run on GGUF files: the same answers as on the folder they come from."""

import hashlib
import json
from pathlib import Path

import pytest

from genx.bench.environment import hash_model
from tests.architectures import make_tiny
from tests.cli.in_process import run_genx
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf

TEMPLATE = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=300).folder


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    keys = byte_level_tokenizer(size=300, bos_token_id=1, padding_token_id=2)
    return convert_to_gguf(folder, folder.parent / "tiny.gguf", metadata={**keys, "tokenizer.chat_template": TEMPLATE})


def test_ids_give_the_folder_s_answer(folder: Path, file: Path) -> None:
    arguments = ("--ids", "1,2,3", "--greedy", "-n", "8", "--json", "--ignore-eos")
    answers = [json.loads(run_genx("run", "-m", str(model), *arguments).text) for model in (folder, file)]
    assert len(answers[1]["ids"]) == 8
    assert answers[0]["ids"] == answers[1]["ids"]


def test_text_goes_through_its_tokenizer_and_template(file: Path) -> None:
    result = run_genx("run", "-m", str(file), "hi", "--greedy", "-n", "3", "--json", "--explain")
    assert result.status == 0
    assert json.loads(result.text)["prompt_tokens"] == len("[hi]")
    assert "chat template" in result.stderr
    raw = run_genx("run", "-m", str(file), "hi", "--raw", "--greedy", "-n", "3", "--json")
    assert json.loads(raw.text)["prompt_tokens"] == len("hi")


def test_a_file_is_found_by_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENX_MODELS", str(file.parent))
    result = run_genx("run", "-m", "tiny", "--ids", "1", "--greedy", "-n", "1", "--stats")
    assert result.status == 0
    assert "model: tiny.gguf, llama, float32" in result.stderr


def test_rows_of_prompts(file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    result = run_genx(
        "run", "-m", str(file), "-i", str(tmp_path / "in.txt"), "--greedy", "-n", "2", "--format", "jsonl"
    )
    assert result.status == 0, result.stderr
    assert len(result.text.splitlines()) == 2


def test_another_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK")
    result = run_genx("run", "-m", str(tmp_path / "model.bin"), "hi")
    assert (result.status, result.stdout) == (1, b"")
    assert result.stderr == (
        f"genx: error: {tmp_path / 'model.bin'} is no GGUF file; give one, or the folder with config.json and "
        "model.safetensors in it\n"
    )


def test_bench_knows_a_file_by_its_bytes(file: Path) -> None:
    assert hash_model(file) == hashlib.sha256(file.read_bytes()).hexdigest()
