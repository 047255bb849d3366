"""genx inspect: what it tells of a folder and of a GGUF file, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architectures import make_tiny
from tests.cli.in_process import run_genx
from tests.fixtures.folders import write_config
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf
from tests.fixtures.tokenizers import write_t1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=300, eos_token_id=256).folder
    return write_t1(folder, ["</s>\x1b"], eos_token="</s>\x1b", chat_template="{{ messages }}")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    keys = byte_level_tokenizer(size=300)
    return convert_to_gguf(folder, folder.parent / "tiny.gguf", kind="BF16", metadata=keys)


VALUES = 300 * 36 * 2 + 36 + 3 * (36 * 60 * 2 + 36 * 20 * 2 + 36 * 52 * 3 + 36 * 2)


def test_a_folder(folder: Path) -> None:
    result = run_genx("inspect", str(folder))
    assert (result.status, result.stderr) == (0, "")
    assert result.text == (
        "model          llama\n"
        f"path           {folder}\n"
        "format         safetensors\n"
        "architecture   llama\n"
        f"parameters     {VALUES:,}\n"
        f"weights        {(folder / 'model.safetensors').stat().st_size / 1024:.2f} KiB\n"
        f"tensors        30 F32, {VALUES:,} values\n"
        "context        40 tokens\n"
        "tokenizer      257 tokens\n"
        "chat template  yes\n"
        "stop ids       256 </s>\\x1b\n"
        f"as stored      {(4 * VALUES + 40 * 480) / 1024:.2f} KiB, of which cache 18.75 KiB; 480 B a token\n"
        f"in float32     {(4 * VALUES + 40 * 480) / 1024:.2f} KiB, of which cache 18.75 KiB; 480 B a token\n"
        f"in bfloat16    {(2 * VALUES + 40 * 240) / 1024:.2f} KiB, of which cache 9.38 KiB; 240 B a token\n"
    )


def test_a_gguf_file_as_json(file: Path) -> None:
    found = json.loads(run_genx("inspect", str(file), "--json").text)
    norms = 36 + 3 * 36 * 2
    assert found == {
        "name": "tiny.gguf",
        "path": str(file),
        "format": "GGUF",
        "architecture": "llama",
        "supported": True,
        "parameters": VALUES,
        "size_bytes": file.stat().st_size,
        "tensors": [
            {"dtype": "BF16", "tensors": 23, "parameters": VALUES - norms, "bytes": 2 * (VALUES - norms)},
            {"dtype": "F32", "tensors": 7, "parameters": norms, "bytes": 4 * norms},
        ],
        "context": 40,
        "vocab_size": 300,
        "tokenizer": {"vocab_size": 300, "has_chat_template": False},
        "eos_token_ids": [257],
        "bos_token_id": None,
        "pad_token_id": None,
        "sampling": {},
        "cache_bytes_per_token": {"float32": 480, "bfloat16": 240},
        "memory_bytes": {
            "as_stored": 2 * (VALUES - norms) + 4 * norms + 40 * 480,
            "float32": 4 * VALUES + 40 * 480,
            "bfloat16": 2 * VALUES + 40 * 240,
        },
    }


def test_a_folder_of_an_architecture_that_genx_has_not(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_config(tmp_path, {**config, "model_type": "falcon\x1b"})
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    result = run_genx("inspect", str(tmp_path))
    assert "architecture   falcon\\x1b (genx does not have it)\n" in result.text
    assert "tokenizer      none\nchat template  no\n" in result.text


def test_damage_is_one_line(folder: Path, tmp_path: Path) -> None:
    write_config(tmp_path, {"model_type": "llama"})
    (tmp_path / "model.safetensors").write_bytes(b"short")
    result = run_genx("inspect", str(tmp_path))
    assert (result.status, result.stdout) == (1, b"")
    assert result.stderr.startswith("genx: error: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["inspect", "MODEL"], ["models"]])
def test_torch_is_not_imported(command: list[str], file: Path) -> None:
    code = (
        "import io, sys\n"
        "from genx.cli.app import program\n"
        "from genx.cli.terminal import Terminal\n"
        "out = io.BytesIO()\n"
        "status = program(sys.argv[1:], Terminal(io.BytesIO(), out, sys.stderr))\n"
        "print(int(status), 'torch' in sys.modules, b'tiny' in out.getvalue())\n"
    )
    arguments = [str(file) if part == "MODEL" else part for part in command]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "GENX_MODELS": str(file.parent)},
    )
    assert done.stdout == "0 False True\n"
