"""genx models: the model in genx, what is in the models folder, and what genx has."""

import json
from pathlib import Path

import pytest

from genx.models.registry import ARCHITECTURES
from tests.architectures import make_tiny
from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.fixtures.gguf_files import convert_to_gguf


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENX_MODELS", str(tmp_path))
    return tmp_path


def test_none_yet(models: Path) -> None:
    result = run_genx("models")
    assert (result.status, result.stderr) == (0, "")
    assert result.text.startswith(f"models in genx and in {models} (none yet)\n")
    assert "| storyteller | " in result.text
    assert all(f"| {name} " in result.text for name in ARCHITECTURES)


def test_folders_and_files_with_their_sizes(models: Path) -> None:
    folder = make_tiny("llama", models).folder
    file = convert_to_gguf(folder, models / "small.gguf", kind="BF16")
    result = run_genx("models")
    assert (result.status, result.stderr) == (0, "")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.text.splitlines() if "|" in line]
    assert rows[0] == ["name", "architecture", "parameters", "dtype", "size", "context", "place"]
    assert (rows[1][0], rows[1][-1]) == ("storyteller", "genx")
    assert rows[2][:4] == ["llama", "llama", "41,364", "F32"]
    size = f"{file.stat().st_size / 1024:.2f} KiB"
    assert rows[3] == ["small", "llama", "41,364", "BF16", size, "40", "models folder"]
    assert "\x1b" not in result.text
    found = json.loads(run_genx("models", "--json").text)
    assert found["folder"] == str(models)
    assert [(model["name"], model["format"], model["place"]) for model in found["models"]] == [
        ("storyteller", "safetensors", "genx"),
        ("llama", "safetensors", "models folder"),
        ("small", "GGUF", "models folder"),
    ]
    assert {"architecture": "openai-gpt", "gguf": False} in found["architectures"]
    assert {"architecture": "cohere", "gguf": True} in found["architectures"]


def test_what_is_damaged_is_listed_with_a_warning(models: Path) -> None:
    (models / "broken").mkdir()
    (models / "broken" / "config.json").write_text("{")
    (models / "cut.gguf").write_bytes(b"GGUF\x03")
    result = run_genx("models")
    assert result.status == 0
    warnings = result.stderr.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2].partition(":")[0] for line in warnings] == ["broken", "cut"]
    assert "| broken  " in result.text
    assert json.loads(run_genx("models", "--json").text)["models"][2]["error"].startswith("the header of ")


def test_a_narrow_terminal(models: Path) -> None:
    make_tiny("llama", models)
    result = run_genx_at_terminal("models", columns=30)
    assert "name llama\narchitecture llama\nparameters 41,364\n" in result.text


def test_a_model_of_the_embedded_ones_name_comes_before_it(models: Path) -> None:
    folder = make_tiny("llama", models).folder
    folder.rename(models / "storyteller")
    found = json.loads(run_genx("models", "--json").text)["models"]
    assert [(model["name"], model["place"]) for model in found] == [("storyteller", "models folder")]
