"""How what stands in other people's files is put into a message."""

from collections.abc import Collection

_LONGEST_TEXT = 1000  # characters; a header may hold a name of many megabytes
_MOST_NAMES = 8


def escaped(text: str) -> str:
    """`text` as one line that a terminal shows and never obeys: what is not printable comes out escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable(value: object) -> str:
    """`value` as `escaped` has it, and cut short if it is very long."""
    text = str(value)
    shown = escaped(text[:_LONGEST_TEXT])
    return shown if len(text) <= _LONGEST_TEXT else f"{shown}... ({len(text):,} characters)"


def name_some(names: Collection[str]) -> str:
    """The first few of `names`, printable and joined by commas, and how many there are beyond them.

    >>> name_some(["a", "b"])
    'a, b'
    """
    first = [printable(name) for name, _ in zip(names, range(_MOST_NAMES), strict=False)]
    beyond = len(names) - len(first)
    return ", ".join(first) + (f" and {beyond:,} more" if beyond else "")
