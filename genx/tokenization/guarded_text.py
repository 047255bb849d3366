"""Text that chat templates may read and move about as usual, and that stays recognisable in what they render.

A control token begins with one of a few signs, mostly "<". In the text of messages each such sign is replaced by a
stand-in, so that a control token in the rendering that has its true first sign was written by the template, and one
with a stand-in by the user. Replacing signs one for one keeps lengths and borders, and a `GuardedText` replaces them
in what it is compared with as well; so templates that look into a message see what they would see without this.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

# A plane of private use, in which no text is written.
_STAND_INS = range(0x10_0000, 0x10_FFFE)


class Guard:
    """Replaces signs by stand-ins that occur nowhere in the messages, and back."""

    def __init__(self, signs: Iterable[str], messages: Sequence[Mapping[str, Any]]) -> None:
        """Args:
        signs: the first signs of control tokens.
        messages: whatever will be guarded; JSON values.
        """
        taken = set(json.dumps(messages, ensure_ascii=False))
        free = (code for code in _STAND_INS if chr(code) not in taken)
        self.table = {ord(sign): stand_in for sign, stand_in in zip(sorted(set(signs)), free, strict=False)}
        self._back = {stand_in: code for code, stand_in in self.table.items()}

    def protect(self, value: Any) -> Any:
        """The JSON value with every text in it guarded, but for the keys and a message's "role"."""
        if isinstance(value, str):
            return GuardedText(value.translate(self.table), self)
        if isinstance(value, Mapping):
            return {key: item if key == "role" else self.protect(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.protect(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """The text with its true signs."""
        return text.translate(self._back)


class GuardedText(str):
    """A text that holds stand-ins, and replaces signs in the arguments of its methods likewise."""

    __slots__ = ("_guard",)
    _guard: Guard

    def __new__(cls, text: str, guard: Guard) -> "GuardedText":
        guarded = super().__new__(cls, text)
        guarded._guard = guard
        return guarded

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, self._translated(other)) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __iter__(self) -> Iterator[str]:
        return (GuardedText(sign, self._guard) for sign in str.__iter__(self))

    def _translated(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._translated(item) for item in value)
        plain = isinstance(value, str) and not isinstance(value, GuardedText)
        return value.translate(self._guard.table) if plain else value

    def _guarded(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._guarded(item) for item in value)
        return GuardedText(value, self._guard) if isinstance(value, str) else value


def _guarded_method(name: str) -> Callable[..., Any]:
    original = cast(Callable[..., Any], getattr(str, name))

    def method(self: GuardedText, *args: Any, **kwargs: Any) -> Any:
        named = {key: self._translated(value) for key, value in kwargs.items()}
        return self._guarded(original(self, *map(self._translated, args), **named))

    method.__name__ = name
    return method


for _name in (
    *("__contains__", "__getitem__", "startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"),
    *("split", "rsplit", "splitlines", "partition", "rpartition"),
):
    setattr(GuardedText, _name, _guarded_method(_name))
