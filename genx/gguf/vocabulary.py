"""The vocabulary in a GGUF file's metadata, checked: its tokens, what kind each is, and which have a role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from genx.errors import TokenizerError
from genx.gguf.header import LongArray
from genx.messages import printable

_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_SCORES, _MERGES = "tokenizer.ggml.scores", "tokenizer.ggml.merges"
TOKENIZER_ARRAYS = (_TOKENS, _KINDS, _SCORES, _MERGES)
"""The keys of the long arrays that a tokenizer is made of."""

# Roles by the name that tokenizer_config.json has for them: the key, and the id where a SentencePiece file is silent.
_ROLES: Mapping[str, tuple[str, int | None]] = {
    "bos_token": ("bos_token_id", 1),
    "eos_token": ("eos_token_id", 2),
    "unk_token": ("unknown_token_id", 0),
    "pad_token": ("padding_token_id", None),
    "sep_token": ("seperator_token_id", None),
    "mask_token": ("mask_token_id", None),
}
_SENTENCEPIECE, _BYTE_LEVEL = "llama", "gpt2"
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts of control tokens that end an answer; many files name one of their two. Source: llama.cpp, src/llama-vocab.cpp.
_END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<EOT>",
        "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>",
    }
)  # fmt: skip
# Where an answer has several messages, each ends with the first, and the answer with the second.
_END_OF_MESSAGE, _END_OF_ANSWER = "<|end|>", "<|return|>"


class TokenKind(IntEnum):
    """What a token is, as `tokenizer.ggml.token_type` numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens, by id, and the ids that have a role."""

    model: str
    """`gpt2` is a byte-level BPE, `llama` is SentencePiece's BPE."""

    texts: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    @property
    def is_sentencepiece(self) -> bool:
        return self.model == _SENTENCEPIECE

    @cached_property
    def roles(self) -> Mapping[str, int]:
        """Ids by their role, such as `bos_token`."""
        return special_ids(self.metadata)

    @cached_property
    def end_ids(self) -> Sequence[int]:
        """The ids that end an answer: those that the file names, then control tokens known for it."""
        named = [_id_at(self.metadata, key) for key in _END_KEYS] + [self.roles.get("eos_token")]
        known = [
            token_id
            for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True))
            if kind == TokenKind.CONTROL and text in _END_TEXTS
        ]
        texts = {self.texts[token_id] for token_id in known}
        if _END_OF_ANSWER in texts:
            known = [token_id for token_id in known if self.texts[token_id] != _END_OF_MESSAGE]
        return list(dict.fromkeys(token_id for token_id in [*named, *known] if token_id is not None))

    def flag(self, name: str, default: bool) -> bool:
        """A truth value of the metadata, such as `add_bos_token`."""
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, bool) else default

    def scores(self) -> Sequence[float]:
        """One a token.

        Raises:
            TokenizerError: there are none, or not as many as tokens.
        """
        return _array(self.metadata, _SCORES, float | int, length=len(self.texts))

    def merges(self) -> Sequence[str]:
        """Pairs of tokens with a space between, in the order in which they are merged.

        Raises:
            TokenizerError: there are none.
        """
        return _array(self.metadata, _MERGES, str)


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Ids of tokens by their role, such as `bos_token`; the arrays need not have been read whole."""
    found: dict[str, int] = {}
    for role, (key, default) in _ROLES.items():
        token_id = _id_at(metadata, key)
        is_silent = f"tokenizer.ggml.{key}" not in metadata and metadata.get("tokenizer.ggml.model") == _SENTENCEPIECE
        if token_id is None and is_silent and default is not None and default < _count(metadata):
            token_id = default
        if token_id is not None:
            found[role] = token_id
    return found


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a file whose `TOKENIZER_ARRAYS` were read whole.

    Raises:
        TokenizerError: there is none, it is of a kind that genx does not read, or contradicts itself.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in (_BYTE_LEVEL, _SENTENCEPIECE):
        raise TokenizerError(
            f"tokenizer.ggml.model is {printable(model)!r}; allowed: gpt2 (byte-level BPE) or llama (SentencePiece)"
        )
    texts = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(_array(metadata, _TOKENS, str))]
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise TokenizerError(f"the vocabulary has {printable(twice)!r} twice; download the file again")
    kinds = _array(metadata, _KINDS, int, length=len(texts)) if _KINDS in metadata else [TokenKind.NORMAL] * len(texts)
    return Vocabulary(model, texts, kinds, metadata)


def _array(metadata: Mapping[str, Any], key: str, kind: Any, *, length: int | None = None) -> list[Any]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
        raise TokenizerError(f"{key} is missing, too long, or holds something else; download the file again")
    if length is not None and len(values) != length:
        raise TokenizerError(f"{key} has {len(values):,} entries for {length:,} tokens; download the file again")
    return values


def _id_at(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _count(metadata)
    return value if is_id else None


def _count(metadata: Mapping[str, Any]) -> int:
    """How many tokens there are."""
    tokens = metadata.get(_TOKENS)
    if isinstance(tokens, LongArray):
        return tokens.length
    return len(tokens) if isinstance(tokens, list) else 0
