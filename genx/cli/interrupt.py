"""Ctrl-C while text is generated: the first is a wish to end, the second ends at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Within its `with` block the first Ctrl-C sets `requested`, a second one is a KeyboardInterrupt.

    Signals reach the main thread only; in another one the block changes nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: Any = None

    def requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._requested

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
