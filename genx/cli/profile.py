"""Where the time of a run goes, phase by phase: --profile."""

from collections.abc import Callable

from genx.cli.status import Row


class Profile:
    """Phases that follow each other without a gap, from the program's first line on."""

    def __init__(self, clock: Callable[[], float] | None, started: float) -> None:
        """
        Args:
            clock: seconds since whenever; None asks nobody and notes nothing.
            started: what the clock said when the program began.
        """
        self._clock = clock
        self._last = started
        self._phases: list[tuple[str, float]] = []

    def mark(self, phase: str) -> None:
        """Name what has happened since the last mark."""
        if self._clock is None:
            return
        now = self._clock()
        self._phases.append((phase, now - self._last))
        self._last = now

    def mark_parts(self, phase: str, seconds: float, rest: str) -> None:
        """Name what has happened since the last mark: first one phase that took so long, then the rest."""
        self._phases.append((phase, seconds))
        self._last += seconds
        self.mark(rest)

    def rows(self) -> list[Row]:
        """Seconds and share of each phase, and the sum of all."""
        total = sum(seconds for _, seconds in self._phases)
        rows = [(phase, f"{seconds:.3f} s, {seconds / (total or 1):.0%}") for phase, seconds in self._phases]
        return [*rows, ("whole run", f"{total:.3f} s since the program's first line")]
