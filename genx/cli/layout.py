"""Tables as text, for the width, the characters and the colours that the terminal on stdout has."""

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from genx.cli.output import Output
from genx.cli.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNKNOWN_WIDTH = 80
_PIPE_WIDTH = 10_000  # nothing in a pipe is folded


class Layout:
    """What can be shown on stdout, and tables that fit it."""

    def __init__(self, terminal: Terminal, *, ascii_only: bool = False) -> None:
        self.width = terminal_width(terminal)
        self.unicode = not ascii_only and terminal.stdout_is_terminal and _encodes_unicode()
        self._colour = terminal.stdout_is_terminal and not terminal.environment.get("NO_COLOR")
        self._dumb = terminal.environment.get("TERM") == "dumb"

    def fits(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether the table is no wider than the terminal."""
        return sum(max(map(len, column)) + 3 for column in zip(titles, *rows, strict=True)) <= self.width

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, bad: str = "no") -> str:
        """A table whose first `left` columns are words; cells that read `bad` are marked."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD if self.unicode else box.ASCII2, header_style="bold")
        for index, title in enumerate(titles):
            table.add_column(Text(title), justify="left" if index < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell, style="red" if cell == bad else "") for cell in row))
        return self._render(table)

    def table_or_lines(self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
        """A table, or on a terminal that is too narrow for it a line each, which it may fold where it likes."""
        if self.fits(titles, rows):
            return self.table(titles, rows, left=left)
        return "\n".join("".join(f"{a} {b}\n" for a, b in zip(titles, row, strict=True)) for row in rows)

    def _render(self, table: "Table") -> str:
        console = self._console()
        console.print(table)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return "".join(line.rstrip() + "\n" for line in text.splitlines() if line.strip())

    def _console(self) -> "Console":
        from rich.console import Console

        return Console(
            file=io.StringIO(),
            width=max(self.width, 1),
            force_terminal=self._colour and not self._dumb,
            no_color=not self._colour,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
            _environ={},
        )


def show(terminal: Terminal, text: str) -> None:
    """Write what was laid out to stdout; control characters in it are the layout's own, and what came from elsewhere
    is printable already.

    Raises:
        BrokenPipeError: the reader has gone.
        GenxError: stdout cannot be written.
    """
    Output(replace(terminal, stdout_is_terminal=False)).write(text)


def terminal_width(terminal: Terminal) -> int:
    """Columns to lay out for: COLUMNS, else those of the terminal; unbounded in a pipe. 0 means that nobody knows."""
    columns = terminal.environment.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        return int(columns[:6]) or _UNKNOWN_WIDTH
    if not terminal.stdout_is_terminal:
        return _PIPE_WIDTH
    try:
        return os.get_terminal_size(terminal.stdout.fileno()).columns or _UNKNOWN_WIDTH
    except (OSError, ValueError):
        return _UNKNOWN_WIDTH


def _encodes_unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
