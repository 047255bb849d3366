"""What a command talks to: its streams, whether a person sits behind them, the environment and the clock."""

import errno
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, NoReturn, TextIO

from genx.messages import escaped


class _Closed(io.BytesIO):
    """A stdout that was closed before the program began: what goes there is lost, which must not pass for success."""

    def write(self, data: object) -> NoReturn:
        raise OSError(errno.EBADF, "it was closed before the program began")


@dataclass(frozen=True)
class Terminal:
    """The surroundings of one run of the program, passed in so that nothing below reads globals.

    stdin and stdout are bytes, since prompts and text are UTF-8 whatever the locale says; stderr is text.
    """

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: TextIO
    stdin_is_terminal: bool = False
    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of_process(cls, started: float | None = None) -> "Terminal":
        """The terminal of this process; a stdin that was closed by its parent reads empty, and a stderr writes nowhere.

        Args:
            started: what `clock` said when the program began; None is now.
        """
        return cls(
            stdin=sys.stdin.buffer if sys.stdin else io.BytesIO(),
            stdout=sys.stdout.buffer if sys.stdout else _Closed(),
            stderr=sys.stderr or io.StringIO(),
            stdin_is_terminal=bool(sys.stdin) and sys.stdin.isatty(),
            stdout_is_terminal=bool(sys.stdout) and sys.stdout.isatty(),
            stderr_is_terminal=bool(sys.stderr) and sys.stderr.isatty(),
            environment=os.environ,
            started=time.perf_counter() if started is None else started,
        )

    def say(self, text: str) -> None:
        """One line on stderr, in which no character can drive the terminal or start a line of its own."""
        try:
            self.stderr.write(escaped(text) + "\n")
            self.stderr.flush()
        except OSError:
            return  # nobody listens; what is said here is never worth failing for
