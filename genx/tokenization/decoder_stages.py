"""The decoders of the `tokenizers` library as stages that a text passes token by token.

A stage takes one token and returns what is final after it; `finish` returns what was still held back. Joined, this
is what the library's decoder makes of the whole list: see https://huggingface.co/docs/tokenizers/components#decoders.

Up to a fusing decoder (Fuse, ByteLevel) the stages see tokens; after it they see one text that arrives in chunks.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

from genx.tokenization.pipeline import Step

REPLACEMENT_CHARACTER = "\ufffd"

# Rust's number parser, which reads these tokens in the library, takes a plus sign too.
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


class Stage(Protocol):
    """One decoder, fed token by token."""

    def push(self, token: str) -> list[str]:
        """Take the next token (or chunk of text) and return what is final now."""

    def finish(self) -> list[str]:
        """Return what was held back. Called once, after the last token."""


def build_stages(steps: Sequence[Step] | None) -> list[Stage] | None:
    """The stages of a decoder whose steps these are, or None where only whole lists can be decoded.

    Without a decoder (None) the tokens are joined with spaces.
    """
    if steps is None:
        return [_FirstDiffers(lambda token: token, lambda token: " " + token)]
    stages: list[Stage] = []
    fused = False
    for position, step in enumerate(steps):
        stage: Stage | None
        kind = step.get("type")
        if kind == "Fuse":
            fused = True
            continue
        if fused:
            stage = _text_stage(step)
        elif kind == "BPEDecoder":
            # Its tokens arrive in parts, which only a fusing step may follow.
            only_fusing = all(later.get("type") == "Fuse" for later in steps[position + 1 :])
            stage = _LastDiffers(_native(step)) if only_fusing else None
        else:
            stage = _token_stage(step)
            fused = kind == "ByteLevel"
        if stage is None:
            return None
        stages.append(stage)
    return stages


def _token_stage(step: Step) -> Stage | None:
    match step:
        case {"type": "ByteLevel"}:
            return _ByteLevel()
        case {"type": "ByteFallback"}:
            return _ByteFallback()
        case {"type": "Replace"}:
            decoder = _native(step)
            return _EachAlike(lambda token: decoder.decode([token]))
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": int(stop)}:
            # The library's own panics where a token is shorter than what is stripped from its end.
            return _EachAlike(lambda token: "".join(_StripText(content, start, stop).push(token)))
        case {"type": "Metaspace" | "WordPiece"}:
            decoder = _native(step)
            return _FirstDiffers(lambda token: decoder.decode([token]), lambda token: decoder.decode(["", token]))
        case {"type": "CTC"}:
            return _WithoutRepeats(_native(step))
    return None


def _text_stage(step: Step) -> Stage | None:
    match step:
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": int(stop)}:
            return _StripText(content, start, stop)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return _ReplaceText(pattern, content)
    return None


def _native(step: Step) -> Decoder:
    """The library's own decoder."""
    empty = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "added_tokens": []}
    decoder: Decoder = Tokenizer.from_str(json.dumps({**empty, "decoder": step})).decoder
    return decoder


class _EachAlike:
    """A decoder that changes each token by itself."""

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def push(self, token: str) -> list[str]:
        return [self._change(token)]

    def finish(self) -> list[str]:
        return []


class _FirstDiffers:
    """A decoder that treats the first token in one way and all others in another."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._change = first
        self._later = later

    def push(self, token: str) -> list[str]:
        changed = self._change(token)
        self._change = self._later
        return [changed]

    def finish(self) -> list[str]:
        return []


class _LastDiffers:
    """BPEDecoder: the end-of-word sign is a space, but nothing in the last token."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._held: tuple[str, str] | None = None  # what follows if another token comes, and if none does

    def push(self, token: str) -> list[str]:
        released = self._held[0] if self._held else ""
        if_more, if_last = self._decoder.decode([token, ""]), self._decoder.decode([token])
        pairs = enumerate(zip(if_more, if_last, strict=False))
        common = next((n for n, (a, b) in pairs if a != b), min(len(if_more), len(if_last)))
        self._held = (if_more[common:], if_last[common:])
        return [released + if_last[:common]]

    def finish(self) -> list[str]:
        return [self._held[1]] if self._held else []


class _WithoutRepeats:
    """CTC: a token that repeats the one before it says nothing."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._previous: str | None = None

    def push(self, token: str) -> list[str]:
        if token == self._previous:
            return []
        self._previous = token
        text = self._decoder.decode([token])
        return [text] if text else []

    def finish(self) -> list[str]:
        return []


class _ByteLevel:
    """Signs that stand for bytes, read as UTF-8; a malformed sequence is one replacement character."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: str) -> list[str]:
        return [self._utf8.decode(_token_bytes(token))]

    def finish(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback:
    """Byte tokens such as <0xE4> among ordinary ones.

    The library decodes a run of byte tokens as a whole: well-formed, or one replacement character per byte. So
    nothing of a run is final before it ends, or before it is certain to be malformed.
    """

    def __init__(self) -> None:
        self._start_run()

    def _start_run(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="strict")
        self._run = ""  # the characters that are whole so far
        self._length = 0  # in bytes
        self._malformed = False

    def push(self, token: str) -> list[str]:
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is None:
            return [*self.finish(), token]
        if self._malformed:
            return [REPLACEMENT_CHARACTER]
        self._length += 1
        try:
            self._run += self._utf8.decode(bytes([int(byte[1], 16)]))
        except UnicodeDecodeError:
            self._malformed = True
            return [REPLACEMENT_CHARACTER] * self._length
        return []

    def finish(self) -> list[str]:
        run, length, malformed = self._run, self._length, self._malformed
        unfinished = bool(self._utf8.getstate()[0])
        self._start_run()
        if malformed or not length:
            return []
        return [REPLACEMENT_CHARACTER] * length if unfinished else [run]


class _StripText:
    """Strip on a text: up to `start` leading and `stop` trailing signs go."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._start = start
        self._stop = stop
        self._tail = ""  # trailing signs, which are dropped if the text ends here

    def push(self, token: str) -> list[str]:
        while self._start and token:
            if not token.startswith(self._content):
                self._start = 0
                break
            token = token[1:]
            self._start -= 1
        text = self._tail + token
        signs = min(len(text) - len(text.rstrip(self._content)), self._stop)
        self._tail = text[len(text) - signs :]
        return [text[: len(text) - signs]]

    def finish(self) -> list[str]:
        return []


class _ReplaceText:
    """Replace on a text: a chunk may end within the pattern."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content
        self._tail = ""  # the beginning of a pattern, perhaps

    def push(self, token: str) -> list[str]:
        *complete, rest = (self._tail + token).split(self._pattern)
        possible = range(min(len(rest), len(self._pattern) - 1), 0, -1)
        kept = next((size for size in possible if self._pattern.startswith(rest[-size:])), 0)
        self._tail = rest[len(rest) - kept :]
        return [self._content.join([*complete, rest[: len(rest) - kept]])]

    def finish(self) -> list[str]:
        return [self._tail]


def _printable_bytes() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


# The sign that byte-level vocabularies write for each byte: itself where it is printable, else one from U+0100 on.
BYTE_OF_SIGN = _printable_bytes()


def _token_bytes(token: str) -> bytes:
    # An added token may hold other signs; then it stands for itself.
    if all(sign in BYTE_OF_SIGN for sign in token):
        return bytes(BYTE_OF_SIGN[sign] for sign in token)
    return token.encode()
