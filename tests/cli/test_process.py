"""The installed program as a process of its own: encodings, and a whole pseudo-terminal around it."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Scripted


def _genx(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "genx", *arguments],
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_text_is_utf8_whatever_the_locale(scripted: Scripted, encoding: str) -> None:
    """ggml-org/llama.cpp#6294, Textualize/rich#3764, simonw/llm#768: in and out."""
    model = scripted("🦊 讲", prompt_tokens=len("é讲".encode()))
    done = _genx(
        "run", "--echo", "-m", model, stdin="é讲\n".encode(), PYTHONIOENCODING=encoding, PYTHONUTF8="0", LC_ALL="C"
    )
    assert (done.returncode, done.stdout.decode("utf-8"), done.stderr) == (0, "é讲🦊 讲", b"")


def test_into_a_file(scripted: Scripted, tmp_path: Path) -> None:
    """ollama/ollama#16785, huggingface/tokenizers#964: the text alone, whatever the environment says."""
    with Path(tmp_path, "out").open("wb") as out, Path(tmp_path, "err").open("wb") as err:
        status = subprocess.run(
            [sys.executable, "-m", "genx", "run", "x", "-n", "400", "-m", scripted("a" * 300)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"},
            timeout=120,
            check=False,
        ).returncode
    assert (status, Path(tmp_path, "out").read_bytes(), Path(tmp_path, "err").read_bytes()) == (0, b"a" * 300, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes streams otherwise")
def test_text_that_goes_nowhere_is_no_success(scripted: Scripted) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "genx", "run", "x", "-m", scripted("abc")],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    expected = b"genx: error: stdout cannot be written: it was closed before the program began\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_in_a_pseudo_terminal_of_60_columns(scripted: Scripted) -> None:
    """Everything on one terminal, as a person has it; an interrupt typed there ends the run with 130."""
    shown, status = _in_terminal([sys.executable, "-m", "genx", "run", "x", "-m", scripted("The fox\x1b[2J.")])
    assert status == 0
    text = shown.index("The fox^[[2J.\r\n")
    assert shown.index("reading the prompt") < text < shown.index("finished")
    assert shown.rindex("\x1b[2K") < text


def _in_terminal(command: list[str], columns: int = 60) -> tuple[str, int]:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            piece = os.read(ours, 65536) if ready else b" "
        except OSError:  # Linux says EIO once the program has closed its end
            break
        if not piece:
            break
        shown += piece if ready else b""
    status = process.wait(timeout=10)
    os.close(ours)
    return shown.decode("utf-8"), status
