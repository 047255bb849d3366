"""How far a run over files of prompts is: a bar at a terminal, a plain line now and then off it, and a closing line."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from genx.cli.status import Status
from genx.cli.terminal import Terminal

if TYPE_CHECKING:
    from genx.engine.rows.run import Tally


_SECONDS_BETWEEN_LINES = 30.0


class RowsProgress:
    """Shows tallies as they come."""

    def __init__(self, terminal: Terminal, status: Status, total: int | None, *, quiet: bool) -> None:
        """
        Args:
            terminal: where lines go off a terminal.
            status: where the bar goes at one.
            total: rows in all, None where that is not known beforehand.
            quiet: show nothing on the way.
        """
        self._say: Callable[[str], None] = terminal.say
        self._plain = not terminal.stderr_is_terminal and not quiet
        self._status = status
        self._total = total
        self._clock = terminal.clock
        self._started = self._last_line = terminal.clock()

    def show(self, tally: "Tally") -> None:
        """Show how far it is."""
        seconds = self._clock() - self._started
        self._status.show(f"{tally.rows:,} rows, {self._rates(tally, seconds)}", tally.rows, self._total)
        if self._plain and self._clock() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = self._clock()
            total = "" if self._total is None else f" of {self._total:,}"
            self._say(f"genx: {tally.rows:,}{total} rows, {self._rates(tally, seconds)}")

    def closing_line(self, tally: "Tally") -> str:
        """What the run came to."""
        seconds = self._clock() - self._started
        parts = [
            f"{tally.done:,} done now" if tally.kept else "",
            f"{tally.kept:,} kept from before" if tally.kept else "",
            f"{tally.failed:,} failed" if tally.failed else "",
            f"{tally.blank:,} blank line{'s' * (tally.blank != 1)} skipped" if tally.blank else "",
            f"{tally.prompt_tokens:,} prompt and {tally.new_tokens:,} new tokens in {duration(seconds)}",
            _speed(tally.new_tokens, seconds),
        ]
        return f"{tally.rows:,} row{'s' * (tally.rows != 1)}: " + ", ".join(filter(None, parts))

    def _rates(self, tally: "Tally", seconds: float) -> str:
        parts = [f"{tally.done / seconds:,.1f} rows/s" if seconds > 0 else "", _speed(tally.new_tokens, seconds)]
        if self._total is not None and tally.done and seconds > 0:
            left = (self._total - tally.rows) * seconds / tally.done
            parts.append(f"{duration(left)} left")
        return ", ".join(filter(None, parts))


def _speed(tokens: int, seconds: float) -> str:
    if seconds <= 0 or not tokens:
        return ""
    rate = tokens / seconds
    return f"{rate:,.{0 if rate >= 10 else 1}f} tokens/s"


def duration(seconds: float) -> str:
    """A time in the two units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"
