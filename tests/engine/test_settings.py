"""From what was asked for to what takes effect."""

from typing import Any

import pytest

from genx.checkpoint import GenerationDefaults
from genx.engine.settings import GenerationSettings, Origin, RequestedSettings, resolve_settings
from genx.errors import ArgumentError, CheckpointError


def _resolve(sampling: dict[str, Any] | None = None, **requested: Any) -> GenerationSettings:
    defaults = GenerationDefaults((2, 7), 0, None, sampling or {})
    return resolve_settings(RequestedSettings(**requested), defaults, draw_seed=lambda: 41)


@pytest.mark.parametrize(
    ("requested", "do_sample"),
    [
        ({}, False),
        ({"seed": 5}, False),
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "seed": 5}, False),
        ({"temperature": 1.0}, True),
        ({"temperature": 1e-45}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.5}, True),
        ({"do_sample": True}, True),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5, "top_p": 0.5}, False),
    ],
)
def test_when_sampling_is_on(requested: dict[str, Any], do_sample: bool) -> None:
    settings = _resolve(**requested)
    assert settings.do_sample is do_sample
    assert (settings.seed is not None) is do_sample


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature is 0.0; allowed when sampling"),
        ({"temperature": 0.0, "top_k": 5}, "temperature is 0.0; allowed when sampling"),
        ({"top_k": 5, "top_p": 0.9}, r"top_k \(5\) and top_p \(0.9\) are both given"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": -1.0}, r"temperature is -1.0"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616; allowed: a whole number from"),
        ({"seed": -(1 << 63) - 1}, "seed is -9223372036854775809"),
        ({"stop": ("a", "")}, "stop is empty"),
        ({"max_time": 0.0}, "max_time is 0.0"),
        ({"max_time": float("nan")}, "max_time is nan"),
        ({"ignore_eos": True, "eos_token_ids": (1,)}, "ignore_eos and eos_token_id are both given"),
    ],
)
def test_what_is_refused(requested: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        _resolve(**requested)


def test_greedy_wins_and_names_what_it_leaves_unused() -> None:
    settings = _resolve(do_sample=False, temperature=0.7, top_k=5, top_p=7.0, seed=1)
    assert settings.unused == ("temperature", "top_k", "top_p", "seed")
    assert settings.seed is None
    assert _resolve(do_sample=False, temperature=0.0).unused == ()
    assert _resolve(seed=1).unused == ()


def test_a_seed_is_drawn_when_none_is_given() -> None:
    drawn, given = _resolve(do_sample=True), _resolve(do_sample=True, seed=-3)
    assert (drawn.seed, drawn.origin("seed")) == (41, Origin.DRAWN)
    assert (given.seed, given.origin("seed")) == (-3, Origin.FLAG)


def test_origins() -> None:
    settings = _resolve(temperature=0.5, max_new_tokens=9, stop=["x"])
    origins = {name: str(settings.origin(name)) for name in GenerationSettings.__dataclass_fields__}
    assert {name for name, origin in origins.items() if origin == "flag"} == {
        "do_sample",
        "temperature",
        "max_new_tokens",
        "stop",
    }
    assert {name for name, origin in origins.items() if origin == "checkpoint"} == {"eos_token_ids", "pad_token_id"}
    assert settings.max_new_tokens == 9
    assert _resolve().max_new_tokens == 256


def test_ends() -> None:
    assert _resolve().eos_token_ids == (2, 7)
    assert _resolve(eos_token_ids=(9,)).eos_token_ids == (9,)
    ignored = _resolve(ignore_eos=True)
    assert (ignored.eos_token_ids, ignored.origin("eos_token_ids")) == ((), Origin.FLAG)


SUGGESTED = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


def test_the_checkpoint_s_sampling_counts_only_on_demand() -> None:
    assert not _resolve(SUGGESTED).do_sample
    settings = _resolve(SUGGESTED, checkpoint_sampling=True)
    assert (settings.do_sample, settings.temperature, settings.top_k, settings.top_p) == (True, 0.6, None, 0.9)
    assert settings.origin("temperature") is settings.origin("do_sample") is Origin.CHECKPOINT


@pytest.mark.parametrize(
    ("sampling", "requested", "expected"),
    [
        (SUGGESTED, {"temperature": 2.0}, (True, 2.0, None, 0.9)),
        (SUGGESTED, {"top_k": 4}, (True, 0.6, 4, None)),  # a filter that is given replaces the checkpoint's
        (SUGGESTED, {"temperature": 0.0}, (False, 0.0, None, 0.9)),
        (SUGGESTED, {"do_sample": False}, (False, 0.6, None, 0.9)),
        ({"temperature": 0.6}, {}, (True, 0.6, None, None)),
        ({"do_sample": False, "temperature": 0.6}, {}, (False, 0.6, None, None)),
        ({"temperature": 0}, {}, (False, 0, None, None)),
        ({"do_sample": True, "top_k": 0, "top_p": 1.0}, {}, (True, 1.0, None, None)),  # files mean "no filter"
        ({}, {}, (False, 1.0, None, None)),
    ],
)
def test_flags_and_checkpoint_sampling_together(
    sampling: dict[str, Any], requested: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    settings = _resolve(sampling, checkpoint_sampling=True, **requested)
    assert (settings.do_sample, settings.temperature, settings.top_k, settings.top_p) == expected


def test_a_checkpoint_with_both_filters_says_which_flag_drops_one() -> None:
    both = {"do_sample": True, "top_k": 20, "top_p": 0.9}
    with pytest.raises(ArgumentError) as error:
        _resolve(both, checkpoint_sampling=True)
    assert str(error.value) == (
        "checkpoint_sampling finds both top_k (20) and top_p (0.9) in generation_config.json; "
        "allowed: one of them; top_k 20 drops top_p, top_p 0.9 drops top_k"
    )
    assert _resolve(both, checkpoint_sampling=True, top_k=20).top_p is None
    assert _resolve(both, checkpoint_sampling=True, top_p=0.9).top_k is None


def test_a_checkpoint_with_impossible_sampling() -> None:
    with pytest.raises(CheckpointError, match=r"generation_config.json: top_p is 7; .*drop --checkpoint-sampling"):
        _resolve({"top_p": 7}, checkpoint_sampling=True)
