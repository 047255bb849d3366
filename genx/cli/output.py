"""The model's text on stdout: bytes as they are off a terminal, control characters shown rather than obeyed on one."""

import os
import re
from contextlib import suppress
from typing import BinaryIO

from genx.cli.terminal import Terminal
from genx.errors import GenxError

# C0 without tab and line feed, DEL, and C1: what moves cursors, changes titles and rings bells. And the marks that turn
# the direction of what follows, so that a line reads as another.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Output:
    """Writes text to stdout in UTF-8 and flushes each piece, so that a reader sees it as it comes.

    On a terminal `close` adds the line feed that a text may lack; off a terminal nothing is ever added or changed.

    Raises, from every method:
        BrokenPipeError: the reader has gone.
        GenxError: stdout cannot be written, for instance since the disk is full.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._stream = terminal.stdout
        self._shows_control = terminal.stdout_is_terminal
        self._ends_line = True

    def write(self, text: str) -> None:
        """Write one piece of text; an empty one writes nothing."""
        if not text:
            return
        if self._shows_control:
            text = show_control_characters(text)
        self._ends_line = text.endswith("\n")
        try:
            self._stream.write(text.encode("utf-8", errors="replace"))
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            detach(self._stream)
            raise GenxError(f"stdout cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """End the text: on a terminal, with a line feed if it lacks one."""
        if self._shows_control and not self._ends_line:
            self.write("\n")


def show_control_characters(text: str) -> str:
    """The text with control characters other than tab and line feed in caret notation, those beyond ASCII as escapes.

    >>> show_control_characters("a\\x1b[2Jb\\x9bc")
    'a^[[2Jb\\\\x9bc'
    """
    return _CONTROL.sub(lambda match: _show(match.group()), text)


def _show(character: str) -> str:
    code = ord(character)
    return character.encode("unicode_escape").decode("ascii") if code >= 0x80 else "^" + chr(code ^ 0x40)


def detach(stream: BinaryIO) -> None:
    """Let what is still buffered for a reader that has gone vanish, so that Python does not complain at exit."""
    with suppress(OSError, ValueError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
