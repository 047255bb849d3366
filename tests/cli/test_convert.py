"""genx convert: whole folders or none, and what an interruption leaves is used."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer as Backend

from genx.checkpoint import conversion, load_model, read_config_json, read_generation_defaults
from genx.tokenization import load_tokenizer
from tests.architectures import RECIPES, make_tiny, prompt
from tests.checkpoint.gguf.test_architectures import TAKEN_FOR_GRANTED
from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.fixtures.folders import assert_same_weights
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=300).folder


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    keys = byte_level_tokenizer(["h e"], size=300, bos_token_id=1, add_bos_token=True)
    keys = {**keys, "tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    return convert_to_gguf(folder, folder.parent / "tiny.gguf", kind="Q8_0", metadata=keys)


def test_a_gguf_file_becomes_a_folder(file: Path, tmp_path: Path) -> None:
    result = run_genx("convert", str(file), str(tmp_path / "out"))
    assert (result.status, result.text, result.stderr) == (0, f"{tmp_path / 'out'}\n", "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_same_weights(load_model(tmp_path / "out"), load_model(file))
    assert read_config_json(tmp_path / "out")["torch_dtype"] == "float32"
    assert read_generation_defaults(tmp_path / "out") == read_generation_defaults(file)
    for text in ("hello", "<|end|>x"):
        assert load_tokenizer(tmp_path / "out").encode(text) == load_tokenizer(file).encode(text)
    messages = [{"role": "user", "content": "hey"}]
    assert load_tokenizer(tmp_path / "out").encode_chat(messages) == load_tokenizer(file).encode_chat(messages)


def test_transformers_reads_the_tokenizer_as_genx_does(file: Path, tmp_path: Path) -> None:
    run_genx("convert", str(file), str(tmp_path / "out"))
    own = load_tokenizer(file)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert peer.encode("hello <|end|>") == own.encode("hello <|end|>")
    assert own.encode("hello")[0] == 1
    assert Backend.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("hello").ids == own.encode("hello")


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "gpt"])
def test_transformers_reads_every_architecture_s_folder(name: str, tmp_path: Path) -> None:
    tiny = make_tiny(name, tmp_path, **TAKEN_FOR_GRANTED.get(name, {}))
    file = convert_to_gguf(tiny.folder, tmp_path / "tiny.gguf")
    assert run_genx("convert", str(file), str(tmp_path / "out")).status == 0
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    with torch.no_grad():
        found, expected = peer(prompt()).logits, tiny.peer(prompt()).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_a_folder_in_another_dtype(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    result = run_genx("convert", str(folder), str(tmp_path / "out"), "--dtype", "bfloat16")
    assert result.status == 0
    assert_same_weights(load_model(tmp_path / "out"), load_model(folder, dtype="bfloat16"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["torch_dtype"], config.get("dtype")) == ("bfloat16", None)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"


def test_what_exists_is_left_alone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = run_genx("convert", str(file), str(tmp_path))
    assert (result.status, result.stdout) == (1, b"")
    assert result.stderr == f"genx: error: {tmp_path} exists already; give another folder, or remove it\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_empty_folder_is_filled(file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run_genx("convert", str(file), str(tmp_path / "out")).status == 0
    load_model(tmp_path / "out")


class TestInterruption:
    @pytest.fixture(autouse=True)
    def _small_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conversion, "_LARGEST_SHARD", 30_000)

    def interrupt(self, file: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
        """Let the conversion end while it writes its third shard."""
        write = conversion.write_safetensors
        calls: list[Path] = []

        def failing(path: Path, *arguments: Any) -> None:
            calls.append(path)
            if len(calls) == 3:
                raise OSError(28, "No space left on device")
            write(path, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(conversion, "write_safetensors", failing)
            result = run_genx("convert", str(file), str(out), *more)
        assert result.status == 1
        assert "No space left on device; check the space" in result.stderr
        assert not out.exists()

    def test_written_files_are_used_again(self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "out"
        self.interrupt(file, out, monkeypatch)
        kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / ".out.partial").glob("*.safetensors")}
        assert len(kept) == 2
        assert run_genx("convert", str(file), str(out)).status == 0
        assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
        assert_same_weights(load_model(out), load_model(file))
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) > 3
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_those_of_another_conversion_are_not(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        self.interrupt(file, out, monkeypatch, "--dtype", "float16")
        assert run_genx("convert", str(file), str(out)).status == 0
        assert_same_weights(load_model(out), load_model(file))


@pytest.mark.parametrize(("arguments", "status"), [(["--dtype", "int4"], 2), ([], 1)])
def test_refusals(arguments: list[str], status: int, tmp_path: Path) -> None:
    result = run_genx("convert", str(tmp_path / "nothing"), str(tmp_path / "out"), *arguments)
    assert (result.status, result.stdout) == (status, b"")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_bar_is_on_stderr_and_goes_away(file: Path, tmp_path: Path) -> None:
    result = run_genx_at_terminal("convert", str(file), str(tmp_path / "out"), stdout_is_terminal=False)
    assert result.text == f"{tmp_path / 'out'}\n"
    assert "writing out" in result.stderr
