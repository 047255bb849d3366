"""--quantize and --kernels: what is computed, said, and refused."""

import json
from pathlib import Path

import pytest

from genx.kernels.library import native_library
from tests.cli.conftest import Scripted
from tests.cli.in_process import run_genx

FOX = "the quick brown fox"

needs_native = pytest.mark.skipif(isinstance(native_library(), str), reason="needs the compiled operations")


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize("kernels", ["torch", pytest.param("native", marks=needs_native)])
def test_the_text_of_a_prompt(scripted: Scripted, quantize: str, kernels: str) -> None:
    result = run_genx(
        *("run", "x", "-n", "19", "--stats", "-m", scripted(FOX)), *("--quantize", quantize, "--kernels", kernels)
    )
    assert (result.status, result.text) == (0, FOX)
    weights = {"none": "", "int8": "int8 weights, ", "int4": "int4 and int8 weights, "}[quantize]
    assert f"gpt2, {weights}float32 arithmetic (auto) on cpu" in result.stderr


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rows_of_a_file(scripted: Scripted, quantize: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("x\ny\nz\n")
    result = run_genx("run", "-i", str(prompts), "-n", "5", "-m", scripted(FOX), "--quantize", quantize)
    assert result.status == 0
    assert [json.loads(line)["text"] for line in result.text.splitlines()] == [FOX[:5]] * 3


def test_results_of_other_weights_are_not_mixed(scripted: Scripted, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("x\n")
    run = ("run", "-i", str(prompts), "-o", str(answers), "-n", "5", "-m", scripted(FOX))
    assert run_genx(*run).status == 0
    refused = run_genx(*run, "--resume", "--quantize", "int8")
    assert refused.status == 2
    assert "other" in refused.stderr
    assert run_genx(*run, "--resume").status == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quantize", "q4"], "--quantize is 'q4'; allowed: none, int8, int4"),
        (["--kernels", "none"], "--kernels is 'none'; allowed: auto, native, torch"),
        (
            ["--quantize", "int8", "--dtype", "bfloat16"],
            "--quantize int8 and --dtype bfloat16 are both given; it computes in float32; drop --dtype, and weights of "
            "16 bits stay as they are stored",
        ),
        (
            ["--kernels", "native", "--device", "cuda"],
            "--kernels native and --device cuda are both given; it is for the CPU; drop one",
        ),
    ],
)
def test_refusals(scripted: Scripted, options: list[str], message: str) -> None:
    result = run_genx("run", "x", "-m", scripted("x"), *options)
    assert (result.status, result.text) == (2, "")
    assert message in result.stderr


def test_batch_invariance_needs_torchs_operations(scripted: Scripted, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("x\n")
    run = ("run", "-i", str(prompts), "-n", "3", "-m", scripted(FOX), "--batch-invariant")
    refused = run_genx(*run, "--kernels", "native")
    assert refused.status == 2
    assert "--batch-invariant and --kernels native are both given; it needs --kernels torch; drop one" in refused.stderr
    assert json.loads(run_genx(*run, "--quantize", "int8").text)["text"] == FOX[:3]
