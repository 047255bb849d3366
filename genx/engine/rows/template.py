"""A prompt made from a row's fields: `Summarise: {text}`. No torch."""

import json
import re
from collections.abc import Mapping
from typing import Any

from genx.errors import ArgumentError, GenxError
from genx.messages import name_some

_PARTS = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]+)\}|(?P<stray>[{}])")


class RowError(GenxError):
    """This row cannot be run; the others can."""


class Template:
    """Text in which `{name}` stands for a field of the row; `{{` and `}}` are braces.

    A field that is no text stands as its JSON.
    """

    def __init__(self, text: str) -> None:
        """
        Raises:
            ArgumentError: a brace stands alone, or no field is named.
        """
        self._text = text
        parts = list(_PARTS.finditer(text))
        stray = next((part for part in parts if part["stray"]), None)
        if stray is not None:
            raise ArgumentError(
                "{template} has a lone {given!r} at character {place}; write a field as {{name}}, a brace twice",
                given=stray["stray"],
                place=stray.start(),
            )
        self.fields = tuple(dict.fromkeys(part["name"] for part in parts if part["name"]))
        if not self.fields:
            raise ArgumentError(
                "{template} names no field, so that every prompt would be the same; name one as {{text}}"
            )

    def fill(self, fields: Mapping[str, Any]) -> str:
        """The prompt of a row.

        Raises:
            RowError: the row lacks a field.
        """
        missing = next((name for name in self.fields if fields.get(name) is None), None)
        if missing is not None:
            raise RowError(f"no field {missing!r} for the template; the row has {named_fields(fields)}")
        return _PARTS.sub(lambda part: _as_text(fields[part["name"]]) if part["name"] else part[0][0], self._text)


def named_fields(fields: Mapping[str, Any]) -> str:
    """The names of a row's fields, in words."""
    return f"the fields {name_some(fields)}" if fields else "no field"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
