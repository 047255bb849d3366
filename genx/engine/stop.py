"""Stop texts in a stream: nothing of one is ever released, and nothing else is held back."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop texts to be complete in a text that arrives in pieces.

    The result does not depend on how the text is cut into pieces: of several stops the one that is complete first
    counts, and the longest of those that end together.

    Args:
        stops: texts of at least one character each.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return what can be released, and whether a stop text was found.

        Text before the stop is released, the stop and what follows it is dropped. Without a stop exactly the longest
        tail that may grow into one is held back.
        """
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = self._tail_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What is still held back, released since the text ends here."""
        held, self._held = self._held, ""
        return held

    def _tail_length(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
