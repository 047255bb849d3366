"""Ctrl-C and closed pipes."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from genx.cli.interrupt import Interruption
from tests.cli.conftest import Scripted
from tests.cli.in_process import run_genx
from tests.fixtures.models import successor_head, write_bigram
from tests.fixtures.tokenizers import write_t1


class Interrupting(io.BytesIO):
    """A stdout behind which somebody presses Ctrl-C when the text has come this far."""

    def __init__(self, after: bytes) -> None:
        super().__init__()
        self._after = after

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        written = super().write(piece)
        if self.getvalue() == self._after:
            signal.raise_signal(signal.SIGINT)
        return written


class Closing(io.BytesIO):
    """A stdout whose reader goes away after so many pieces."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        if not self.left:
            raise BrokenPipeError
        self.left -= 1
        return super().write(piece)


def test_ctrl_c_keeps_the_text_and_the_summary(scripted: Scripted) -> None:
    """fastapi/typer PR #1039."""
    out = Interrupting(after=b"ab")
    result = run_genx("run", "x", "--stats", "-m", scripted("abcdef"), stdout=out)
    assert (result.status, result.stdout) == (130, b"ab")
    assert "finished: interrupted\n" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_in_json(scripted: Scripted) -> None:
    ticks = iter(range(1000))

    def clock() -> float:
        tick = next(ticks)
        if tick == 3:
            signal.raise_signal(signal.SIGINT)
        return tick

    result = run_genx("run", "x", "--json", "-m", scripted("abcdef"), clock=clock)
    found = json.loads(result.text)
    assert (result.status, result.stderr) == (130, "")
    assert (found["text"], found["finish_reason"], found["new_tokens"]) == ("abc", "interrupted", 3)


def test_a_second_ctrl_c_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert not interruption.requested()
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_cannot_be_interrupted() -> None:
    seen: list[bool] = []

    def wait() -> None:
        with Interruption() as interruption:
            seen.append(interruption.requested())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_reader_that_has_gone_ends_the_run_quietly(scripted: Scripted) -> None:
    """Textualize/rich#3400."""
    out = Closing(pieces=2)
    result = run_genx("run", "x", "--stats", "-m", scripted("abcdef"), stdout=out)
    assert (result.status, result.stdout, result.stderr) == (0, b"ab", "")


def test_a_full_disk_is_one_line(scripted: Scripted) -> None:
    class Full(io.BytesIO):
        def write(self, piece: bytes) -> int:  # type: ignore[override]
            raise OSError(28, "No space left on device")

    result = run_genx("run", "x", "-m", scripted("abc"), stdout=Full())
    assert (result.status, result.stderr) == (1, "genx: error: stdout cannot be written: No space left on device\n")


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A model that counts through the letters for ever."""
    head = successor_head({ord("z"): ord("a")})
    return str(write_bigram(write_t1(tmp_path), head, context=100_000))


def _start(*arguments: str, **streams: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "genx", "run", *arguments],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_process_whose_reader_goes_ends_with_status_0(endless: str) -> None:
    """`genx run ... | head -c 1`: at once, quiet, and nothing from Python at exit."""
    process = _start("a", "-n", "90000", "-m", endless)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b"b"
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_a_process_interrupted_in_mid_stream(endless: str) -> None:
    process = _start("a", "-n", "90000", "-m", endless)
    assert process.stdout is not None
    first = process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")
    letters = b"abcdefghijklmnopqrstuvwxyz"
    text = first + rest
    assert text == (letters * (len(text) // 26 + 2))[1 : len(text) + 1]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_a_process_interrupted_while_it_reads_its_prompt(endless: str) -> None:
    process = _start("-m", endless, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"a" * (1 << 20))  # more than a pipe holds: it is being read once this returns
    process.send_signal(signal.SIGINT)
    found, said = process.communicate(timeout=60)
    assert (process.returncode, found, said) == (130, b"", b"")


def test_an_open_and_silent_stdin_does_not_hold_up_a_prompt(endless: str) -> None:
    """earendil-works/pi#5571."""
    process = _start("a", "-n", "3", "-m", endless, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.wait(timeout=60) == 0
    assert process.stdout.read() == b"bcd"
    process.communicate()
