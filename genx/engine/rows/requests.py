"""What a record asks for: a prompt, settings of its own, and which fields pass through to its answer. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genx.engine.rows.records import TEXT_FIELD, Record
from genx.engine.rows.sources import InputFormat
from genx.engine.rows.template import RowError, Template, named_fields
from genx.engine.settings import RequestedSettings
from genx.sampling_args import is_whole_number

OVERRIDES = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop")
"""Settings that a row may have for itself, by the names of its fields."""

_PROMPT_FIELD = "prompt"
_MESSAGES_FIELD = "messages"
_ID_FIELD = "id"
_FILTERS = ("top_k", "top_p")


@dataclass(frozen=True)
class PromptFields:
    """Where a row's prompt stands: in a field, or in what a template makes of several; None for the usual fields."""

    field: str | None = None
    template: Template | None = None


@dataclass(frozen=True)
class RowRequest:
    """What a record asks for; one of `prompt` and `messages` is None."""

    prompt: str | None
    messages: Sequence[Mapping[str, Any]] | None
    overrides: Mapping[str, Any] = field(default_factory=dict)


def read_row(record: Record, wanted: PromptFields) -> RowRequest:
    """What a record asks for.

    JSON rows may have `id`, `messages` instead of `prompt`, and settings of their own; in a table only `id` and the
    prompt are special, since its columns are data.

    Raises:
        RowError: it cannot be read, has no prompt or an empty one, or a field has a value that is not allowed.
    """
    if record.fields is None:
        raise RowError(record.error or "nothing is in it")
    fields = record.fields
    if record.source.format in (InputFormat.TXT, InputFormat.FILE):
        prompt = wanted.template.fill(fields) if wanted.template else fields[TEXT_FIELD]
        return RowRequest(_checked(prompt), None)
    is_json = record.source.format is InputFormat.JSONL
    messages = _messages(fields, wanted) if is_json else None
    prompt = None if messages is not None else _prompt(fields, wanted)
    own = {name: fields[name] for name in OVERRIDES if is_json and fields.get(name) is not None}
    return RowRequest(prompt, messages, {name: _override(name, value) for name, value in own.items()})


def passed_fields(record: Record, wanted: PromptFields) -> Mapping[str, Any]:
    """The fields that pass through to the answer: those of JSON rows and tables that ask for nothing."""
    if record.fields is None or record.source.format in (InputFormat.TXT, InputFormat.FILE):
        return {}
    special = {_ID_FIELD, _prompt_field(wanted)}
    if record.source.format is InputFormat.JSONL:
        special |= {*OVERRIDES, *(() if wanted.template or wanted.field else (_MESSAGES_FIELD,))}
    return {name: value for name, value in record.fields.items() if name not in special}


def row_id(fields: Mapping[str, Any] | None) -> str | int | None:
    """The id that a row gives itself.

    Raises:
        RowError: it is neither a text nor a whole number.
    """
    given = None if fields is None else fields.get(_ID_FIELD)
    if given is None or isinstance(given, str) or (is_whole_number(given) and isinstance(given, int)):
        return given
    raise RowError(f"the id is {_shown(given)}; allowed: a text or a whole number")


def settings_of(row: RowRequest, asked: RequestedSettings) -> RequestedSettings:
    """What was asked for on the whole, with the row's own settings in place of it.

    A row that names a temperature or a filter decides anew whether it samples: temperature 0 is greedy, and a row's
    filter takes the place of any other.
    """
    own = dict(row.overrides)
    if own.keys() & {"temperature", *_FILTERS}:
        own.setdefault("do_sample", None)
    if own.keys() & {*_FILTERS} or own.get("temperature") == 0:
        for name in _FILTERS:
            own.setdefault(name, None)
    return replace(asked, **own)


def _prompt_field(wanted: PromptFields) -> str:
    return wanted.field or _PROMPT_FIELD


def _messages(fields: Mapping[str, Any], wanted: PromptFields) -> Sequence[Mapping[str, Any]] | None:
    messages = fields.get(_MESSAGES_FIELD)
    if messages is None or wanted.template or wanted.field:
        return None
    if fields.get(_PROMPT_FIELD) is not None:
        raise RowError("both 'prompt' and 'messages' are given; allowed: one of them")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RowError('\'messages\' must be a list such as [{"role": "user", "content": "..."}]')
    return messages


def _prompt(fields: Mapping[str, Any], wanted: PromptFields) -> str:
    if wanted.template:
        return _checked(wanted.template.fill(fields))
    name = _prompt_field(wanted)
    if fields.get(name) is None:
        raise RowError(f"no field {name!r}; the row has {named_fields(fields)}; --field or --template names another")
    return _checked(fields[name])


def _checked(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise RowError(f"the prompt is {_shown(prompt)}; allowed: a text")
    if not prompt:
        raise RowError("the prompt is empty; give some text")
    return prompt


def _override(name: str, value: Any) -> Any:
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        raise RowError(f"stop is {_shown(value)}; allowed: a text, or a list of texts")
    whole = name in ("max_new_tokens", "top_k", "seed")
    if is_whole_number(value) if whole else isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise RowError(f"{name} is {_shown(value)}; allowed: a {'whole ' * whole}number")


def _shown(value: object) -> str:
    most = 60
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
