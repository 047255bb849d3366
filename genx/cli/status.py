"""What a person at the terminal sees on stderr while nothing is on stdout yet, and rows of figures afterwards."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from genx.cli.terminal import Terminal
from genx.errors import GenxWarning
from genx.messages import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Row = tuple[str, str]


class Status:
    """One live line with a bar on stderr, gone without a trace when it is hidden; nothing at all off a terminal."""

    def __init__(self, terminal: Terminal, *, shown: bool = True, eta: bool = False) -> None:
        """
        Args:
            terminal: on whose stderr the line is.
            shown: False shows nothing.
            eta: tell when the total will be reached.
        """
        self._terminal = terminal
        self._eta = eta
        self._shown = shown and terminal.stderr_is_terminal
        self._progress: Progress | None = None

    def __enter__(self) -> "Status":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hide()

    def show(self, doing: str, done: int = 0, total: int | None = None) -> None:
        """Show what is being done, and how much of it is; a `total` of None is not known."""
        if not self._shown:
            return
        doing = escaped(doing)
        if self._progress is None:
            self._progress = _new_progress(self._terminal, self._eta)
            self._progress.add_task(doing, completed=done, total=total)
            self._progress.start()
            return
        task = self._progress.tasks[0]
        self._progress.update(
            task.id, description=doing, completed=done, total=total, refresh=doing != task.description
        )

    def hide(self) -> None:
        """Take the line away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def warn(self, text: str) -> None:
        """A warning on a line of its own, which stays."""
        self.hide()
        self._terminal.say(f"genx: warning: {text}")


@contextmanager
def forwarded_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Give genx's own warnings to `warn`, each text once; those of libraries are not meant for who runs a command."""
    seen: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, GenxWarning) and str(message) not in seen:
            seen.add(str(message))
            warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


def print_rows(terminal: Terminal, rows: Sequence[Row]) -> None:
    """Labelled lines on stderr: folded in two columns on a terminal, one plain line each off it."""
    if not terminal.stderr_is_terminal:
        for label, text in rows:
            terminal.say(f"{label}: {text}")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(escaped(label)), Text(escaped(text)))
    _console(terminal).print(table)


def _console(terminal: Terminal) -> "Console":
    from rich.console import Console

    # COLUMNS=0 means that nobody knows; Rich would print nothing at all.
    environment = {name: value for name, value in terminal.environment.items() if (name, value) != ("COLUMNS", "0")}
    return Console(file=terminal.stderr, highlight=False, emoji=False, _environ=environment)


def _new_progress(terminal: Terminal, eta: bool) -> "Progress":
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(show_speed=False),
        *((TimeRemainingColumn(),) if eta else ()),
        console=_console(terminal),
        transient=True,
    )
