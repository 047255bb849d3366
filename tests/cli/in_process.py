"""The program with injected streams: far faster than a process of its own, which imports torch each time."""

import io
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import pytest

from genx.cli.app import program
from genx.cli.terminal import Terminal


@dataclass(frozen=True)
class Result:
    """How a run of the program ended, and what it wrote."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8")


def run_genx(
    *arguments: str,
    stdin: bytes = b"",
    stdin_is_terminal: bool = False,
    stdout: BinaryIO | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] | None = None,
) -> Result:
    """`genx ARGUMENTS` with pipes on all sides."""
    out = io.BytesIO() if stdout is None else stdout
    err = io.StringIO()
    terminal = Terminal(
        stdin=io.BytesIO(stdin),
        stdout=out,
        stderr=err,
        stdin_is_terminal=stdin_is_terminal,
        environment=environment or {},
        **({} if clock is None else {"clock": clock}),
    )
    status = program(arguments, terminal)
    written = out.getvalue() if isinstance(out, io.BytesIO) else b""
    return Result(status, written, err.getvalue())


def run_genx_at_terminal(
    *arguments: str,
    columns: int = 80,
    stdout_is_terminal: bool = True,
    stderr_is_terminal: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """`genx ARGUMENTS` with pseudo-terminals where wanted, each with its own; what they show is the result."""
    with _Screen(columns) as out, _Screen(columns) as err:
        pipe_out, pipe_err = io.BytesIO(), io.StringIO()
        terminal = Terminal(
            stdin=io.BytesIO(),
            stdout=out.stream if stdout_is_terminal else pipe_out,
            stderr=io.TextIOWrapper(err.stream, "utf-8", write_through=True) if stderr_is_terminal else pipe_err,
            stdout_is_terminal=stdout_is_terminal,
            stderr_is_terminal=stderr_is_terminal,
            environment={"TERM": "xterm-256color", "COLUMNS": str(columns), **(environment or {})},
        )
        status = program(arguments, terminal)
        terminal.stderr.flush()
    return Result(
        status,
        out.shown if stdout_is_terminal else pipe_out.getvalue(),
        err.shown.decode("utf-8") if stderr_is_terminal else pipe_err.getvalue(),
    )


class _Screen:
    """A pseudo-terminal that keeps what is written to it."""

    def __init__(self, columns: int) -> None:
        pty = pytest.importorskip("pty")
        import fcntl
        import struct
        import termios

        self._reading_end, self._writing_end = pty.openpty()
        fcntl.ioctl(self._writing_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = os.fdopen(self._writing_end, "wb", closefd=False)
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "_Screen":
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stream.closed:
            self.stream.flush()
        os.close(self._writing_end)  # the reader sees the end
        self._reader.join()
        os.close(self._reading_end)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._reading_end, 65536)
            except OSError:  # Linux says EIO once the other end is closed
                return
            if not piece:
                return
            self._pieces.append(piece)

    @property
    def shown(self) -> bytes:
        """What was written, with the terminal's own CR LF as LF again."""
        return b"".join(self._pieces).replace(b"\r\n", b"\n")
