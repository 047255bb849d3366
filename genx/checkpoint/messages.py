"""How what stands in other people's files is put into a message."""

import unicodedata
from collections.abc import Collection

_LONGEST_TEXT = 1000  # characters; a header may hold a name of many megabytes
_MOST_NAMES = 8


def printable(value: object) -> str:
    """`value` as text that a terminal shows and never obeys: control and format characters come out escaped."""
    text = str(value)
    shown = text[:_LONGEST_TEXT]
    escaped = "".join(_escaped(character) if _acts(character) else character for character in shown)
    return escaped if len(text) <= _LONGEST_TEXT else f"{escaped}... ({len(text):,} characters)"


def name_some(names: Collection[str]) -> str:
    """The first few of `names`, printable and joined by commas, and how many there are beyond them.

    >>> name_some(["a", "b"])
    'a, b'
    """
    first = [printable(name) for name, _ in zip(names, range(_MOST_NAMES), strict=False)]
    beyond = len(names) - len(first)
    return ", ".join(first) + (f" and {beyond:,} more" if beyond else "")


def _acts(character: str) -> bool:
    # Cc, Cf, Cs, Co, Cn: controls, direction marks, lone surrogates, unassigned; Zl and Zp break lines.
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
