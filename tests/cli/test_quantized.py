"""genx convert --quantize, and the folder that it writes through every command."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from genx.checkpoint import conversion, load_model
from genx.kernels.library import native_library
from tests.architectures import make_tiny
from tests.checkpoint.gguf.test_fuzz import FEW, MANY, Watch, mutations
from tests.cli.conftest import Scripted
from tests.cli.in_process import run_genx
from tests.fixtures.folders import assert_same_weights

needs_native = pytest.mark.skipif(isinstance(native_library(), str), reason="needs the compiled operations")
FORMATS = ("int8", "int4")
IDS = ("--ids", "1,2,3", "--greedy", "-n", "9")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama-tied", tmp_path_factory.mktemp("tiny"), hidden_size=192, intermediate_size=128).folder


@pytest.fixture(scope="module", params=FORMATS)
def quantized(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Path]:
    out = folder.parent / request.param
    result = run_genx("convert", str(folder), str(out), "--quantize", request.param)
    assert (result.status, result.text, result.stderr) == (0, f"{out}\n", "")
    return request.param, out


@pytest.mark.parametrize("kernels", ["torch", pytest.param("native", marks=needs_native)])
def test_it_runs_as_the_original_quantised(quantized: tuple[str, Path], folder: Path, kernels: str) -> None:
    kind, out = quantized
    expected = run_genx("run", "-m", str(folder), *IDS, "--quantize", kind, "--kernels", kernels)
    for more in ([], ["--quantize", kind]):
        found = run_genx("run", "-m", str(out), *IDS, "--kernels", kernels, "--explain", *more)
        assert (found.status, found.text) == (0, expected.text)
        weights = {"int8": "int8", "int4": "int4 and int8"}[kind]
        told = next(line for line in found.stderr.splitlines() if line.startswith("weights"))
        assert told.startswith(f"weights: {weights}, ")
        assert told.endswith("(flag)" if more else "(checkpoint)")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floats_where_a_dtype_is_given(quantized: tuple[str, Path], dtype: str) -> None:
    found = run_genx("run", "-m", str(quantized[1]), *IDS, "--dtype", dtype, "--explain")
    assert found.status == 0
    assert f"{dtype}, " in next(line for line in found.stderr.splitlines() if line.startswith("weights"))


def test_another_format_is_refused(quantized: tuple[str, Path], tmp_path: Path) -> None:
    kind, out = quantized
    other = {"int8": "int4", "int4": "int8"}[kind]
    found = run_genx("run", "-m", str(out), *IDS, "--quantize", other)
    assert (found.status, found.text) == (2, "")
    assert found.stderr == (
        f"genx: error: --quantize is {other}, and {out} has weights of {kind} already; drop --quantize, or convert the "
        "original again\n"
    )
    again = run_genx("convert", str(out), str(tmp_path / "again"), "--quantize", other)
    assert again.status == 1
    assert f"has weights of {kind}; allowed: {kind}, or a dtype" in again.stderr


def test_a_dtype_beside_it_is_refused(folder: Path, tmp_path: Path) -> None:
    result = run_genx("convert", str(folder), str(tmp_path / "out"), "--quantize", "int8", "--dtype", "float16")
    assert result.status == 2
    assert "--quantize int8 and --dtype float16 are both given; allowed: one of them" in result.stderr
    assert not (tmp_path / "out").exists()


def test_bytes_on_disk_and_what_is_said_of_them(quantized: tuple[str, Path], folder: Path) -> None:
    kind, out = quantized
    original, found = (json.loads(run_genx("inspect", str(path), "--json").text) for path in (folder, out))
    assert found["parameters"] == original["parameters"]
    head, norms, biases = 97 * 192, 7 * 192, 3 * (60 + 2 * 10 + 192 + 2 * 128 + 192)
    layers = original["parameters"] - head - norms - biases
    bits = {"int8": 8.5, "int4": 5}[kind]
    padded = (layers + 3 * 192 * 4) * bits / 8  # of 60 columns filled up to 64
    held = {"F32": 4 * (head + norms + biases), kind: padded + (head * 8.5 / 8 if kind == "int8" else 0)}
    if kind == "int4":
        held["int8"] = head * 8.5 / 8
    assert {part["dtype"]: part["bytes"] for part in found["tensors"]} == held
    assert sum(held.values()) < found["size_bytes"] < sum(held.values()) + 20_000
    as_stored = found["memory_bytes"]["as_stored"] - found["memory_bytes"]["float32"]
    assert as_stored < -2 * layers


def test_it_is_listed(quantized: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, out = quantized
    monkeypatch.setenv("GENX_MODELS", str(out.parent))
    listed = {model["name"]: model for model in json.loads(run_genx("models", "--json").text)["models"]}
    assert listed[kind]["parameters"] == listed["llama-tied"]["parameters"]
    assert (listed[kind]["architecture"], "error" in listed[kind]) == ("llama", False)


def test_rows_are_counted_and_answered(scripted: Scripted, tmp_path: Path) -> None:
    out, prompts = tmp_path / "out", tmp_path / "prompts.txt"
    assert run_genx("convert", scripted("the quick brown fox"), str(out), "--quantize", "int8").status == 0
    prompts.write_text("x\ny\n")
    answered = run_genx("run", "-i", str(prompts), "-n", "5", "-m", str(out))
    assert [json.loads(line)["text"] for line in answered.text.splitlines()] == ["the q"] * 2
    assert run_genx("run", "-i", str(prompts), "-n", "5", "-m", str(out), "--count").status == 0


def test_an_interruption_is_gone_on_from(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_LARGEST_SHARD", 120_000)
    out, write, calls = tmp_path / "out", conversion.write_safetensors, []

    def failing(path: Path, *arguments: Any) -> None:
        calls.append(path.name)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        write(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "write_safetensors", failing)
        result = run_genx("convert", str(folder), str(out), "--quantize", "int8")
    assert (result.status, out.exists()) == (1, False)
    partial = tmp_path / ".out.partial"
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.safetensors")}
    assert sorted(kept) == calls[:2]
    assert run_genx("convert", str(folder), str(out), "--quantize", "int8").status == 0
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    whole = tmp_path / "whole"
    monkeypatch.undo()
    assert run_genx("convert", str(folder), str(whole), "--quantize", "int8").status == 0
    assert_same_weights(load_model(out), load_model(whole))


def fuzz(source: Path, copy: Path, count: int, seed: int) -> None:
    """Damaged headers, configurations and indices of folders in blocks: one line, or an answer."""
    chance = random.Random(seed)
    watch = Watch()
    names = ["model.safetensors", "config.json"]
    for name in names:
        (copy / name).write_bytes((source / name).read_bytes())
    for number in range(count):
        name = chance.choice(names)
        whole = (source / name).read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little") if name == names[0] else len(whole)
        (copy / name).write_bytes(next(mutations(whole, 1, seed + number, header)))
        watch.run("run", "-m", str(copy), *IDS, "--kernels", chance.choice(("auto", "torch")))
        (copy / name).write_bytes(whole)
    watch.close(count)


def test_damaged_folders(quantized: tuple[str, Path], tmp_path: Path) -> None:
    fuzz(quantized[1], tmp_path, FEW, seed=5)


@pytest.mark.slow
def test_many_damaged_folders(quantized: tuple[str, Path], tmp_path: Path) -> None:
    fuzz(quantized[1], tmp_path, MANY, seed=6)
