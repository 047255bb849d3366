"""From what a person asked for to the settings that take effect, each with its origin. No torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from genx.errors import ArgumentError, CheckpointError
from genx.sampling_args import normalize_eos_token_ids, validate_max_new_tokens, validate_sampling_args

if TYPE_CHECKING:
    from genx.checkpoint import GenerationDefaults

DEFAULT_MAX_NEW_TOKENS = 256

# What torch's generators take.
_SMALLEST_SEED, _LARGEST_SEED = -(1 << 63), (1 << 64) - 1
_FILTERS = ("top_k", "top_p")


class Origin(StrEnum):
    """Where a setting comes from."""

    FLAG = "flag"
    CHECKPOINT = "checkpoint"
    DEFAULT = "default"
    DRAWN = "drawn"


@dataclass(frozen=True)
class RequestedSettings:
    """What was asked for; None where nothing was."""

    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    use_cache: bool | None = None
    eos_token_ids: Sequence[int] = ()
    pad_token_id: int | None = None
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    max_time: float | None = None
    checkpoint_sampling: bool = False


@dataclass(frozen=True)
class GenerationSettings:
    """The settings in effect.

    `temperature`, `top_k` and `top_p` matter only with `do_sample`; `seed` is None without it. `eos_token_ids` are the
    model's own ends, `stop` the texts that end it too. `unused` names what was asked for and has no effect.
    """

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    use_cache: bool = True
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    stop: tuple[str, ...] = ()
    max_time: float | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def origin(self, name: str) -> Origin:
        """Where the setting of this name comes from."""
        return self.origins.get(name, Origin.DEFAULT)


def check_requested(requested: RequestedSettings) -> None:
    """Refuse what no checkpoint can make right; the rest is up to `resolve_settings`.

    Raises:
        ArgumentError: a value, or a combination of values, that is not allowed.
    """
    if requested.max_new_tokens is not None:
        validate_max_new_tokens(requested.max_new_tokens)
    for token_id in normalize_eos_token_ids(requested.eos_token_ids):
        if token_id < 0:
            raise ArgumentError("{eos_token_id} is {given}; allowed: whole numbers of at least 0", given=token_id)
    if requested.ignore_eos and requested.eos_token_ids:
        raise ArgumentError("{ignore_eos} and {eos_token_id} are both given; allowed: one of them; drop the other")
    if requested.seed is not None and not _SMALLEST_SEED <= requested.seed <= _LARGEST_SEED:
        raise ArgumentError("{seed} is {given}; allowed: a whole number from -2^63 to 2^64 - 1", given=requested.seed)
    if "" in requested.stop:
        raise ArgumentError("{stop} is empty; allowed: a text of at least one character")
    if any("\ud800" <= character <= "\udfff" for text in requested.stop for character in text):
        raise ArgumentError("{stop} is not UTF-8, and no text of a model contains it; allowed: UTF-8")
    if requested.max_time is not None and not (math.isfinite(requested.max_time) and requested.max_time > 0):
        raise ArgumentError(
            "{max_time} is {given}; allowed: a finite number of seconds above 0", given=requested.max_time
        )
    _decide_sampling(requested, {})


def resolve_settings(
    requested: RequestedSettings, checkpoint: "GenerationDefaults", draw_seed: Callable[[], int]
) -> GenerationSettings:
    """The settings in effect: what was asked for, else what the checkpoint says, else the default.

    Greedy decoding is the default. Sampling is on if asked for, if `top_k` or `top_p` is given, or a temperature other
    than 0. The checkpoint's sampling values count only with `checkpoint_sampling`.

    Args:
        requested: what was asked for.
        checkpoint: what the checkpoint says.
        draw_seed: gives the seed of a sampled run that was given none.

    Raises:
        ArgumentError: a value, or a combination of values, that is not allowed.
        CheckpointError: the checkpoint's sampling values are to be used and are not allowed.
    """
    check_requested(requested)
    suggested = _usable(checkpoint.sampling) if requested.checkpoint_sampling else {}
    values, origins = _decide_sampling(requested, suggested)
    unused = _unused(requested) if requested.do_sample is False else ()
    if values["do_sample"]:
        values["seed"] = draw_seed() if requested.seed is None else requested.seed
        origins["seed"] = Origin.DRAWN if requested.seed is None else Origin.FLAG
    for name in ("max_new_tokens", "use_cache", "max_time"):
        _take(name, getattr(requested, name), Origin.FLAG, values, origins)
    if requested.stop:
        values["stop"], origins["stop"] = tuple(requested.stop), Origin.FLAG
    _decide_ends(requested, checkpoint, values, origins)
    return GenerationSettings(**values, origins=origins, unused=unused)


def _decide_sampling(
    requested: RequestedSettings, suggested: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Origin]]:
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    values["do_sample"], origins["do_sample"] = _decide_mode(requested, suggested)
    filter_is_given = any(getattr(requested, name) is not None for name in _FILTERS)
    for name in ("temperature", *_FILTERS):
        if not (name in _FILTERS and filter_is_given):
            _take(name, suggested.get(name), Origin.CHECKPOINT, values, origins)
        _take(name, getattr(requested, name), Origin.FLAG, values, origins)
    if not values["do_sample"]:
        return values, origins
    from_checkpoint = [name for name in origins if origins[name] is Origin.CHECKPOINT]
    if {"top_k", "top_p"} <= set(from_checkpoint):
        raise ArgumentError(
            "{checkpoint_sampling} finds both top_k ({k}) and top_p ({p}) in generation_config.json; "
            "allowed: one of them; {top_k} {k} drops top_p, {top_p} {p} drops top_k",
            k=values["top_k"],
            p=values["top_p"],
        )
    try:
        validate_sampling_args(True, values.get("temperature", 1.0), values.get("top_k"), values.get("top_p"))
    except ArgumentError as error:
        if from_checkpoint and not any(getattr(requested, name) is not None for name in ("temperature", *_FILTERS)):
            raise CheckpointError(f"generation_config.json: {error}; or drop --checkpoint-sampling") from error
        raise
    return values, origins


def _decide_mode(requested: RequestedSettings, suggested: Mapping[str, Any]) -> tuple[bool, Origin]:
    if requested.do_sample is not None:
        return requested.do_sample, Origin.FLAG
    if requested.top_k is not None or requested.top_p is not None:
        return True, Origin.FLAG
    if requested.temperature is not None:
        return requested.temperature != 0, Origin.FLAG
    if suggested:
        return bool(suggested.get("do_sample", suggested.get("temperature") != 0)), Origin.CHECKPOINT
    return False, Origin.DEFAULT


def _decide_ends(
    requested: RequestedSettings,
    checkpoint: "GenerationDefaults",
    values: dict[str, Any],
    origins: dict[str, Origin],
) -> None:
    _take("eos_token_ids", checkpoint.eos_token_ids or None, Origin.CHECKPOINT, values, origins)
    _take("pad_token_id", checkpoint.pad_token_id, Origin.CHECKPOINT, values, origins)
    _take("pad_token_id", requested.pad_token_id, Origin.FLAG, values, origins)
    if requested.eos_token_ids or requested.ignore_eos:
        values["eos_token_ids"], origins["eos_token_ids"] = tuple(requested.eos_token_ids), Origin.FLAG


def _take(name: str, value: Any, origin: Origin, values: dict[str, Any], origins: dict[str, Origin]) -> None:
    if value is not None:
        values[name], origins[name] = value, origin


def _usable(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's sampling values without those by which published files say "no filter"."""
    nothing = {"top_k": 0, "top_p": 1}
    return {name: value for name, value in sampling.items() if value is not None and value != nothing.get(name)}


def _unused(requested: RequestedSettings) -> tuple[str, ...]:
    given = [name for name in (*_FILTERS, "seed") if getattr(requested, name) is not None]
    return tuple(["temperature"] * (requested.temperature not in (None, 0)) + given)
