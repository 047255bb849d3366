"""genx bench end to end on a tiny model: processes, rows, exit codes. No test looks at how long anything took."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Result, run_genx
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1

# One group: the tests share one measured run, which every test process would make anew.
pytestmark = pytest.mark.xdist_group("bench")
POINTS = ("-p", "6,70", "-g", "3", "-r", "4", "--warmup", "1", "--threads", "1", "--seed", "7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("bench") / "model"
    write_t1(made, ["</s>"], eos_token="</s>")
    return str(write_scripted(made, [256, 65, 66], context=64, generation_config={"eos_token_id": 256}))


@pytest.fixture(scope="module")
def measured(folder: str) -> Result:
    """One point that runs and one that is longer than the model's context."""
    return run_genx("bench", "-m", folder, *POINTS, "-o", "json")


def report(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.text)
    return found


def test_a_failing_point_is_a_row_and_the_exit_code_is_1(measured: Result) -> None:
    """ggml-org/llama.cpp#22815, #26236: one failing point ended the sweep."""
    first, second = report(measured)["points"]
    assert (measured.status, measured.stderr) == (1, "")
    assert (first["status"], first["error"]) == ("ok", None)
    assert second["status"] == "failed"
    assert second["error"] == (
        "depth 0 and prompt 70 are more than the model's context of 64 tokens; give less of either"
    )


def test_the_environment(measured: Result, folder: str) -> None:
    env = report(measured)["env"]
    named = {
        *("genx", "torch", "python", "cpu", "cores", "affinity", "device", "model_hash", "command"),
        *("read_GB_s", "matmul_GFLOP_s"),
    }
    assert named <= set(env)
    assert env["device"] == "cpu"
    assert len(env["model_hash"]) == 64
    assert env["command"].startswith(f"genx bench --model {folder} --prompt-tokens 6,70 ")
    assert (env["seed"], env["eos"]) == (7, "ignored")
    assert [rates["threads"] for rates in env["rates"]] == [1]


def test_the_point(measured: Result) -> None:
    found = report(measured)["points"][0]
    assert [found[name] for name in ("engine", "batch", "depth", "dtype", "weights", "threads")] == [
        *("genx", 1, 0, "float32", "float32", 1),
    ]
    assert [found[name] for name in ("prompt_tokens", "new_tokens", "total_tokens")] == [6, 3, 9]
    assert len(found["ttft_s"]["samples"]) == len(found["decode_tps"]["samples"]) == 4
    assert [len(latencies) for latencies in found["itl_ms"]["latencies"]] == [2] * 4  # 3 tokens, the first an end
    assert found["token_passes"] == found["token_passes_formula"]["cached"] == 8
    assert found["token_passes_formula"]["uncached"] == 21
    assert (found["warmup_runs"], found["reused_tokens"], found["prompt"]) == (1, 0, "random")
    assert found["cache_bytes"]["median"] == 2 * 64 * 9 * 4
    assert found["peak_memory_bytes"]["median"] > 1 << 20


def test_resume_measures_only_what_is_missing(measured: Result, folder: str, tmp_path: Path) -> None:
    earlier = tmp_path / "a.json"
    earlier.write_bytes(measured.stdout)
    result = run_genx(
        *("bench", "-m", folder, "-p", "6", "-g", "3,0", "--threads", "1", "-r", "1", "--warmup", "0"),
        *("--resume", str(earlier), "-o", "jsonl"),
    )
    assert result.status == 0
    lines = [json.loads(line) for line in result.text.splitlines()]
    assert [line["schema"] for line in lines] == [1, 1]
    kept, new = (line["points"][0] for line in lines)
    assert kept == report(measured)["points"][0]
    assert (new["new_tokens"], new["decode_tps"], new["itl_ms"]) == (0, None, None)
    assert len(new["ttft_s"]["samples"]) == 1


def test_resume_refuses_figures_of_another_model(measured: Result, folder: str, tmp_path: Path) -> None:
    other = report(measured)
    other["env"]["model_hash"] = "0" * 64
    (tmp_path / "a.json").write_text(json.dumps(other))
    result = run_genx("bench", "-m", folder, "-p", "6", "--threads", "1", "--resume", str(tmp_path / "a.json"))
    assert result.status == 2
    assert f"--resume: {tmp_path / 'a.json'} was measured with model_hash {'0' * 64}, and here it is" in result.stderr


def test_every_axis_and_way_of_running(folder: str, tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_text("the old keeper wrote one line every night")
    result = run_genx(
        *("bench", "-m", folder, "-p", "4", "-g", "2", "-b", "2", "-d", "5", "--dtype", "float32", "--threads", "1"),
        *("--quantize", "int8", "--forward-only", "--prompt-file", str(text), "-r", "2", "--warmup", "0", "-o", "csv"),
    )
    assert result.status == 0, result.stderr
    (row,) = csv.DictReader(io.StringIO(result.text))
    found = [row[name] for name in ("batch", "depth", "dtype", "weights", "token_passes", "repeats", "status")]
    assert found == ["2", "5", "float32", "int8", "5", "2", "ok"]


def test_transformers_beside_it(folder: str) -> None:
    result = run_genx(
        *("bench", "-m", folder, "-p", "6", "-g", "3", "--threads", "1", "-r", "2", "--warmup", "0"),
        *("--against", "transformers", "-o", "json"),
    )
    assert result.status == 0, result.text
    ours, theirs = report(result)["points"]
    assert [ours["engine"], theirs["engine"]] == ["genx", "transformers"]
    assert len(theirs["ratio"]["decode_tps"]["samples"]) == 2
    assert theirs["token_passes"] == ours["token_passes"] == 8
    assert report(result)["env"]["peers"]["transformers"]


def test_help_and_refusals_import_no_torch() -> None:
    code = (
        "import sys; from genx.cli.app import program; from genx.cli.terminal import Terminal;"
        "status = program(sys.argv[1:], Terminal.of_process());"
        "print(status, sorted({'torch', 'transformers', 'rich', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments, expected in ((["bench", "--help"], "0 []"), (["bench", "-p", "x"], "2 []")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == expected


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = run_genx("bench", "-m", str(tmp_path / "none"))
    assert (result.status, result.stdout) == (1, b"")
    assert "there is no model" in result.stderr


def test_no_carriage_return_off_a_terminal(measured: Result) -> None:
    """huggingface/transformers#44303: log files were full of progress lines."""
    assert "\r" not in measured.stderr
    assert b"\x1b" not in measured.stdout
