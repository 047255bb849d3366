"""The rules by which arguments of `generate` are refused.

They stand apart from torch, so that the command line applies the very same ones before torch loads.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real

from genx.errors import ArgumentError


def validate_sampling_args(
    do_sample: bool, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> None:
    """Refuse sampling arguments that no distribution belongs to; greedy decoding uses none and checks none.

    Raises:
        ArgumentError: (a ValueError) `temperature` is not a positive finite number, `top_k` is not a positive whole
            number, `top_p` is not in (0, 1], or both `top_k` and `top_p` are given.
    """
    if not do_sample:
        return
    if not _is_number(temperature) or not math.isfinite(temperature) or temperature <= 0:
        raise ArgumentError(
            "{temperature} is {given}; allowed when sampling: a finite number above 0; "
            "greedy decoding, without {do_sample}, needs none",
            given=repr(temperature),
        )
    if top_k is not None and top_p is not None:
        raise ArgumentError(
            "{top_k} ({given_k}) and {top_p} ({given_p}) are both given; allowed: one of them; drop the other",
            given_k=repr(top_k),
            given_p=repr(top_p),
        )
    if top_k is not None and (not is_whole_number(top_k) or top_k <= 0):
        raise ArgumentError("{top_k} is {given}; allowed: a whole number of at least 1, or none", given=repr(top_k))
    if top_p is not None and (not _is_number(top_p) or not 0 < top_p <= 1):
        raise ArgumentError("{top_p} is {given}; allowed: a number above 0 and at most 1, or none", given=repr(top_p))


def validate_max_new_tokens(max_new_tokens: int) -> None:
    """Refuse a count of new tokens that is not a whole number of at least 0.

    Raises:
        ArgumentError: (a ValueError) it is not.
    """
    if not is_whole_number(max_new_tokens) or max_new_tokens < 0:
        raise ArgumentError(
            "{max_new_tokens} is {given}; allowed: a whole number of at least 0", given=repr(max_new_tokens)
        )


def normalize_eos_token_ids(eos_token_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """The ids that end a row, as a tuple: none for None or an empty sequence.

    An id outside the vocabulary is allowed, since it can never be chosen.

    Raises:
        ArgumentError: (a ValueError) an id is not a whole number.
    """
    if eos_token_id is None:
        return ()
    ids = tuple(eos_token_id) if isinstance(eos_token_id, Sequence) else (eos_token_id,)
    for token_id in ids:
        if not is_whole_number(token_id):
            raise ArgumentError(
                "{eos_token_id} is {given}; allowed: a whole number, several of them, or none", given=repr(token_id)
            )
    return tuple(int(token_id) for token_id in ids)


def resolve_pad_token_id(pad_token_id: int | None, eos_token_ids: tuple[int, ...], vocab_size: int) -> int | None:
    """The id that fills finished rows: `pad_token_id`, else the first end-of-text id; None where no row can finish.

    Raises:
        ArgumentError: (a ValueError) it would be used and is not an id of the vocabulary.
    """
    if not any(0 <= token_id < vocab_size for token_id in eos_token_ids):
        return None
    pad = eos_token_ids[0] if pad_token_id is None else pad_token_id
    if not is_whole_number(pad) or not 0 <= pad < vocab_size:
        raise ArgumentError(
            "{pad_token_id} is {given}; allowed: a token id from 0 to {last}"
            + ("; the first {eos_token_id} is taken unless it is given" if pad_token_id is None else ""),
            given=repr(pad),
            last=vocab_size - 1,
        )
    return int(pad)


def is_whole_number(value: object) -> bool:
    """Whether `value` counts something: an integer of any kind, but not a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
