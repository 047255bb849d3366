"""From what a person typed to the token ids that the model reads. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genx.errors import ArgumentError, UsageError

if TYPE_CHECKING:
    from genx.tokenization import Tokenizer

SIDES: Sequence[str] = ("left", "right")
"""Where a prompt that is longer than the context may be cut."""


@dataclass(frozen=True)
class Prompt:
    """Token ids, the mask that hides some of them (None hides none), and how many were cut off."""

    ids: tuple[int, ...]
    attention_mask: tuple[int, ...] | None = None
    dropped: int = 0


def uses_chat_template(tokenizer: "Tokenizer", raw: bool) -> bool:
    """Whether the prompt is put into the checkpoint's chat template."""
    return tokenizer.has_chat_template and not raw


def encode_prompt(
    tokenizer: "Tokenizer",
    text: str,
    *,
    system: str | None = None,
    raw: bool = False,
    parse_special: bool | None = None,
    bos_token_id: int | None = None,
) -> list[int]:
    """The ids of a prompt: as a chat's first turn where the tokenizer has a template, else as plain text.

    Args:
        tokenizer: the checkpoint's.
        text: the prompt; an empty one is the BOS id alone.
        system: the chat's system message.
        raw: leave the chat template out.
        parse_special: whether control tokens spelled in the text act as such; unless given, only in plain text.
        bos_token_id: what an empty prompt starts from where the tokenizer has no BOS id.

    Raises:
        UsageError: a system message without a chat template, or an empty prompt without a BOS id.
        TokenizerError: the template or tokenizer cannot take this text.
    """
    if uses_chat_template(tokenizer, raw):
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
        return tokenizer.encode_chat(messages, parse_special=bool(parse_special))
    if system is not None:
        raise ArgumentError(
            "{system} needs a chat template, and {why}; put the text into the prompt, or drop {system}",
            why="--raw switches it off" if tokenizer.has_chat_template else "this checkpoint has none",
        )
    ids = tokenizer.encode(text, parse_special=parse_special is not False)
    if ids:
        return ids
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else bos_token_id
    if bos is None:
        raise UsageError("the prompt is empty and the model has no BOS id to start from; give some text")
    return [bos]


def check_prompt_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model has no embedding for.

    Raises:
        ArgumentError: an id outside 0 to `vocab_size` - 1.
    """
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ArgumentError(
                "the prompt holds the token id {given}; allowed: 0 to {last}, the model's vocabulary",
                given=token_id,
                last=vocab_size - 1,
            )


def check_attention_mask(mask: Sequence[int], prompt_tokens: int) -> None:
    """Refuse a mask that no prompt of this length can have.

    Raises:
        ArgumentError: another number of entries than prompt tokens, a value other than 0 and 1, or a hidden last token.
    """
    if any(value not in (0, 1) for value in mask):
        raise ArgumentError(
            "{attention_mask} holds {given}; allowed: 1 for a token, 0 for padding",
            given=next(value for value in mask if value not in (0, 1)),
        )
    if len(mask) != prompt_tokens:
        raise ArgumentError(
            "{attention_mask} has {given} entries; allowed: one for each of the prompt's {allowed} tokens",
            given=len(mask),
            allowed=prompt_tokens,
        )
    if not mask[-1]:
        raise ArgumentError("{attention_mask} hides the last token of the prompt; allowed: padding on the left only")


def fit_prompt(ids: Sequence[int], mask: Sequence[int] | None, context: int, *, truncate: str | None) -> Prompt:
    """The prompt as it fits into the model's context.

    Args:
        ids: token ids of the prompt.
        mask: 0 for hidden tokens, one entry a token.
        context: positions that the model has.
        truncate: of a longer prompt `left` keeps the last `context` tokens, `right` the first; None refuses it.

    Raises:
        ArgumentError: the prompt is longer than the context and may not be cut.
    """
    excess = len(ids) - context
    if excess > 0 and truncate is None:
        raise ArgumentError(
            "the prompt has {given} tokens and the model's context {context}; shorten the prompt, "
            "or give {truncate} left to read its last {context} tokens only, or right for its first",
            given=len(ids),
            context=context,
        )
    dropped = max(excess, 0)
    kept = slice(0, context) if truncate == "right" else slice(dropped, None)
    return Prompt(tuple(ids[kept]), None if mask is None else tuple(mask[kept]), dropped)


def check_truncate(truncate: str | None) -> None:
    """Refuse a side that no prompt has.

    Raises:
        ArgumentError: `truncate` is neither one of SIDES nor None.
    """
    if truncate is not None and truncate not in SIDES:
        raise ArgumentError("{truncate} is {given!r}; allowed: {allowed}", given=truncate, allowed=" or ".join(SIDES))
