"""What a person sees of a run over files of prompts, and what Ctrl-C leaves."""

import io
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.cli.rows import run_rows, write_babbler


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("babbler"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.txt"
    path.write_text("".join(f"prompt {n}\n" for n in range(9)))
    return path


def test_off_a_terminal_a_plain_line_comes_now_and_then(babbler: Path, prompts: Path) -> None:
    """vllm-project/vllm PR #8060: no progress on jobs of hours; huggingface/transformers#44303: logs full of bars."""
    ticks = itertools.count()
    result = run_genx(
        "run", "-m", str(babbler), "-i", str(prompts), "-n", "6", "-b", "3", clock=lambda: float(next(ticks))
    )
    *lines, last = result.stderr.splitlines()
    assert lines
    assert all(line.startswith("genx: ") and " of 9 rows, " in line and line.endswith(" left") for line in lines)
    assert "rows/s" in lines[-1]
    assert "tokens/s" in lines[-1]
    assert last.startswith("genx: 9 rows: 72 prompt and ")
    assert "\r" not in result.stderr
    assert "\x1b" not in result.stderr


def test_quiet_says_nothing(babbler: Path, prompts: Path) -> None:
    ticks = itertools.count()
    result = run_genx("run", "-m", str(babbler), "-i", str(prompts), "--quiet", clock=lambda: float(next(ticks)))
    assert (result.status, result.stderr) == (0, "")


def test_at_a_terminal_there_is_a_bar_and_whole_lines_on_stdout(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    arguments = ("run", "-m", str(babbler), "-i", str(prompts), "-n", "6")
    result = run_genx_at_terminal(*arguments, "-o", str(tmp_path / "a.jsonl"), stdout_is_terminal=False)
    assert (result.status, result.stdout) == (0, b"")
    assert "rows/s" in result.stderr
    assert len((tmp_path / "a.jsonl").read_bytes().splitlines()) == 9
    result = run_genx_at_terminal(*arguments)
    assert [json.loads(line)["row"] for line in result.stdout.splitlines()] == list(range(1, 10))


def test_ctrl_c_keeps_what_is_done(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    class Pressed(io.BytesIO):
        def write(self, data: Any) -> int:
            if len(self.getvalue().splitlines()) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().write(data)

    out = Pressed()
    result = run_genx("run", "-m", str(babbler), "-i", str(prompts), "-n", "3", "-b", "1", stdout=out)
    assert result.status == 130
    rows = [json.loads(line)["row"] for line in out.getvalue().splitlines()]
    assert rows == [1, 2, 3]
    assert result.stderr.splitlines()[-1] == "genx: stopped before the last row"
    (tmp_path / "a.jsonl").write_bytes(out.getvalue())
    result = run_rows(babbler, "-i", prompts, "-n", "3", "-o", tmp_path / "a.jsonl", "--resume")
    assert "9 rows: 6 done now, 3 kept from before" in result.stderr


def test_refusals_need_no_torch() -> None:
    code = (
        "import sys, genx.__main__ as main, genx.cli.app as app, genx.cli.terminal as terminal\n"
        "app.program(['run', '-i', 'p', '--template', 'x', '-m', 'm'], terminal.Terminal.of_process())\n"
        "app.program(['run', '-i', 'nowhere', '-m', '.'], terminal.Terminal.of_process())\n"
        "print(sorted({'torch', 'tokenizers', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
