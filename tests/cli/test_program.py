"""The program around its commands: help, usage errors, the ladder of errors, completion, and what is not imported."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from genx import __version__
from genx.cli import app as app_module
from genx.cli.app import program
from genx.cli.flags import spell_flag
from genx.cli.terminal import Terminal
from genx.errors import ArgumentError, CheckpointError, ExitCode, GenerationError, UsageError
from tests.cli.conftest import Scripted
from tests.cli.in_process import Result, run_genx


def _process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], [], ["run", "--help"], ["run", "--tpo-k", "3"], ["run", "x", "--top-p", "7"]],
    ids=" ".join,
)
def test_help_and_usage_errors_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from genx.cli.app import program\n"
        "from genx.cli.terminal import Terminal\n"
        "program(sys.argv[1:], Terminal.of_process())\n"
        "heavy = {'torch', 'rich', 'tokenizers', 'safetensors', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = _process("-c", code, *arguments)
    assert done.returncode == 0, done.stderr.decode()


def test_python_m_genx_and_version() -> None:
    done = _process("-m", "genx", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"genx {__version__}\n".encode(), b"")


@pytest.mark.parametrize("columns", ["0", "1", "20", "60", "200"])
def test_help_in_any_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """Textualize/rich#4214, rhel-lightspeed/command-line-assistant PR #421: narrow, and of unknown width."""
    monkeypatch.setenv("COLUMNS", columns)
    assert run_genx("run", "--help").status == 0
    shown = capsys.readouterr().out
    for flag in ("--max-new-tokens", "--greedy", "--attention-mask", "--no-use-cache", "--checkpoint-sampling"):
        assert flag in shown
    assert "\x1b" not in shown


def test_the_bare_program_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_genx().status == 0
    shown = capsys.readouterr().out
    assert "run" in shown
    assert "kv-size" in shown


@pytest.mark.parametrize(
    ("arguments", "stderr"),
    [
        (["--foo"], "genx: error: no such option: --foo\nsee genx --help\n"),
        (["rnu"], "genx: error: no such command 'rnu'. Did you mean 'run'?\nsee genx --help\n"),
        (
            ["run", "x", "--tpo-k", "3"],
            "genx: error: no such option: --tpo-k (Possible options: --top-k, --top-p, --tp)\nsee genx run --help\n",
        ),
        (["run", "x", "-n"], "genx: error: option '-n' requires an argument.\nsee genx run --help\n"),
        (["run", "x", "y"], "genx: error: got unexpected extra argument(s) (y)\nsee genx run --help\n"),
    ],
)
def test_usage_errors_are_plain_lines(arguments: list[str], stderr: str) -> None:
    assert run_genx(*arguments) == Result(2, b"", stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-k", "1.5"], "--top-k is '1.5'; allowed: a whole number"),
        (["--top-k", "0"], "--top-k is 0; allowed: a whole number of at least 1, or none"),
        (["--top-p", "7"], "--top-p is 7.0; allowed: a number above 0 and at most 1, or none"),
        (["--top-p", "nan"], "--top-p is nan; allowed: a number above 0 and at most 1, or none"),
        (
            ["--top-k", "5", "--top-p", "0.9"],
            "--top-k (5) and --top-p (0.9) are both given; allowed: one of them; drop the other",
        ),
        (["-n", "-1"], "--max-new-tokens is -1; allowed: a whole number of at least 0"),
        (["-n", "many"], "--max-new-tokens is 'many'; allowed: a whole number"),
        (["--seed", "1e3"], "--seed is '1e3'; allowed: a whole number"),
        (["--temp", "warm"], "--temperature is 'warm'; allowed: a number"),
        (["--device", "tpu"], "--device is 'tpu'; allowed: auto, cpu, cuda, mps"),
        (["--dtype", "int8"], "--dtype is 'int8'; allowed: auto, float32, bfloat16, float16"),
        (["--threads", "0"], "--threads is 0; allowed: a whole number from 1 to 1024"),
        (["--truncate", "middle"], "--truncate is 'middle'; allowed: left or right"),
        (["--stop", ""], "--stop is empty; allowed: a text of at least one character"),
        (["--max-time", "0"], "--max-time is 0.0; allowed: a finite number of seconds above 0"),
        (["--eos-token-id", "x"], "--eos-token-id is 'x'; allowed: whole numbers with commas between them"),
        (
            ["--ignore-eos", "--eos-token-id", "5"],
            "--ignore-eos and --eos-token-id are both given; allowed: one of them; drop the other",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refused_value_names_flag_value_and_what_is_allowed(arguments: list[str], message: str) -> None:
    assert run_genx("run", "x", *arguments) == Result(2, b"", f"genx: error: {message}\n")


@pytest.mark.parametrize("temperature", ["0", "inf", "nan", "-1"])
def test_temperatures_that_no_distribution_belongs_to(temperature: str) -> None:
    """huggingface/transformers#36896."""
    result = run_genx("run", "x", "--sample", "--temperature", temperature)
    assert (result.status, result.stdout) == (2, b"")
    assert result.stderr.startswith(f"genx: error: --temperature is {float(temperature)}; allowed when sampling: a ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CheckpointError("no weights"), 1, "genx: error: no weights"),
        (GenerationError("a NaN"), 1, "genx: error: a NaN"),
        (UsageError("two prompts"), 2, "genx: error: two prompts"),
        (ArgumentError("{top_p} is {given}", given=7), 2, "genx: error: --top-p is 7"),
        (CheckpointError("tensor \x1b[2J\x07 of\nevil\u202e"), 1, r"genx: error: tensor \x1b[2J\x07 of\nevil\u202e"),
        (KeyError("k"), 1, "genx: error: unexpected KeyError: 'k'; this is a bug, GENX_DEBUG=1 shows where"),
    ],
)
def test_each_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, line: str
) -> None:
    """ggml-org/llama.cpp#28969 and X4: what a file says cannot drive the terminal, and there is no traceback."""
    monkeypatch.setattr(app_module, "_invoke", _raising(error))
    assert run_genx("run") == Result(status, b"", line + "\n")


def test_an_unexpected_error_shows_where_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_invoke", _raising(ZeroDivisionError("division by zero")))
    result = run_genx(environment={"GENX_DEBUG": "1"})
    assert result.status == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith(
        "unexpected ZeroDivisionError: division by zero; this is a bug, GENX_DEBUG=1 shows where\n"
    )


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 0)])
def test_quiet_ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int) -> None:
    """fastapi/typer PR #1039, Textualize/rich#3400."""
    monkeypatch.setattr(app_module, "_invoke", _raising(error))
    assert run_genx() == Result(status, b"", "")


def test_exit_codes_are_the_documented_ones() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "SOME_ROWS_FAILED": 3,
        "INTERRUPTED": 130,
    }


def _raising(error: BaseException) -> Callable[..., int]:
    def invoke(*_: object) -> int:
        raise error

    return invoke


def test_errors_can_be_said_in_any_encoding() -> None:
    """Aider-AI/aider PR #5294: the error printer must not fail on what it prints."""
    done = _process(
        "-m", "genx", "run", "x", "-m", "no-🦊-\udcff", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C"
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"genx: error: there is no model" in done.stderr
    assert b"Traceback" not in done.stderr


def test_nobody_on_stderr_is_no_reason_to_fail() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    terminal = Terminal(io.BytesIO(), io.BytesIO(), Gone())
    assert program(["run", "x", "--top-k", "0"], terminal) == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str) -> None:
    """fastapi/typer#180: the script calls the program, and what it answers is nothing else."""
    script = _process("-m", "genx", _GENX_COMPLETE=f"source_{shell}")
    assert b"_GENX_COMPLETE=complete_" + shell.encode() in script.stdout.replace(b"'", b"").replace(b'"', b"")
    words = {"bash": {"COMP_WORDS": "genx run --to", "COMP_CWORD": "2"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": "genx run --to", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    answer = _process("-m", "genx", _GENX_COMPLETE=f"complete_{shell}", **words)
    assert b"--top-k" in answer.stdout
    assert b"--greedy" not in answer.stdout
    assert answer.stderr == b""


def test_flags_are_spelled_as_they_are_declared(scripted: Scripted) -> None:
    """Every name under which the library refuses an argument is a flag of genx run."""
    command = typer.main.get_command(__import__("genx.cli.run", fromlist=["app"]).app)
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for name in (
        "max_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "use_cache",
        "attention_mask",
        "eos_token_id",
        "pad_token_id",
        "seed",
        "input_ids",
        "stop",
        "max_time",
        "device",
        "dtype",
    ):
        assert spell_flag(name) in flags


def test_a_missing_model_folder(tmp_path: Path) -> None:
    result = run_genx("run", "x", "-m", str(tmp_path / "absent"))
    assert (result.status, result.stdout) == (1, b"")
    assert result.stderr.startswith(f"genx: error: there is no model {tmp_path}/absent: ")
    assert result.stderr.count("\n") == 1
