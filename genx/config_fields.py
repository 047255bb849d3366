"""Fields of a configuration, read by kind: each is what it must be, or an error that names it. No torch."""

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from genx.errors import ConfigError
from genx.messages import printable
from genx.sampling_args import is_whole_number


class ExtraFields(dict[str, Any]):
    """The fields of config.json that only some architectures know; null stays null, for other software to read."""

    def flag(self, name: str, default: bool) -> bool:
        """True or false; `default` where it is absent or null."""
        return truth(_without_nulls(self), name, default)

    def number(self, name: str, default: float) -> float:
        """A finite number of at least 0; `default` where it is absent or null."""
        return number(_without_nulls(self), name, default)

    def positive(self, name: str, default: float) -> float:
        """A finite number above 0; `default` where it is absent or null."""
        value = self.number(name, default)
        if value <= 0:
            raise ConfigError(f"{name} is {value!r}; allowed: a finite number above 0")
        return value

    def number_or_off(self, name: str, default: float | None) -> float | None:
        """A finite number above 0; `default` where it is absent, None where it is null."""
        if self.get(name, default) is None:
            return None
        return self.positive(name, default or 0.0)

    def whole(self, name: str, default: int, *, smallest: int = 0) -> int:
        """A whole number; `default` where it is absent or null."""
        value = self.get(name)
        value = default if value is None else value
        if not is_whole_number(value) or not smallest <= int(value) < 1 << 31:
            raise ConfigError(f"{name} is {shown(value)}; allowed: a whole number of at least {smallest}")
        return int(value)

    def whole_numbers(self, name: str, count: int | None = None) -> list[int] | None:
        """A list of whole numbers, `count` of them if that is given; None where it is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        is_list = isinstance(value, list) and all(isinstance(item, bool) or is_whole_number(item) for item in value)
        if not is_list or (count is not None and len(value) != count):
            many = "" if count is None else f"{count} "
            raise ConfigError(f"{name} is {shown(value)}; allowed: a list of {many}whole numbers")
        return [int(item) for item in value]


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float holds: no NaN, no infinity, no whole number of hundreds of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def number(values: Mapping[str, Any], name: str, default: float) -> float:
    """A finite number of at least 0."""
    value = values.get(name, default)
    if not is_finite_number(value) or value < 0:
        raise ConfigError(f"{name} is {shown(value)}; allowed: a finite number of at least 0")
    return float(value)


def probability(values: Mapping[str, Any], name: str, default: float) -> float:
    """A number from 0 to 1."""
    value = number(values, name, default)
    if value > 1:
        raise ConfigError(f"{name} is {value!r}; allowed: a probability from 0 to 1")
    return value


def truth(values: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false."""
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; allowed: true or false")
    return value


def text(values: Mapping[str, Any], name: str, default: str) -> str:
    """A name."""
    value = values.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {shown(value)}; allowed: a name")
    return value


def shown(value: object) -> str:
    """A foreign value as a message shows it."""
    return printable(repr(value))


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
