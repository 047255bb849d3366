"""Text to ids and back, as a checkpoint's own tokenizer has it."""

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel

from genx.errors import GenxWarning, TokenizerError
from genx.messages import printable
from genx.tokenization.control_tokens import ControlTokens
from genx.tokenization.decoder_stages import build_stages
from genx.tokenization.guarded_text import Guard
from genx.tokenization.incremental import IncrementalDecoder
from genx.tokenization.pipeline import has_byte_level, prompt_prefix_id, steps_of
from genx.tokenization.tokenizer_files import TokenizerFiles, library_errors, read_tokenizer_files

if TYPE_CHECKING:
    from genx.tokenization.chat_template import ChatTemplate

# Families that need BOS before every text, even where their files leave `add_bos_token` out.
_CLASSES_WITH_BOS = frozenset({"GemmaTokenizer", "GemmaTokenizerFast"})
_MAX_TOKEN_ID = 2**32 - 1


def load_tokenizer(path: str | PathLike[str]) -> "Tokenizer":
    """Load the tokenizer of a checkpoint folder, tokenizer.json and the small files beside it, or of a GGUF file.

    Truncation and padding that tokenizer.json asks for are switched off. A vocabulary of byte-level signs with a
    decoder that leaves them in the text gets the byte-level decoder.

    Raises:
        TokenizerError: there is no tokenizer, or a file is not what it should be.
        CheckpointError: a GGUF file's header is damaged.
    """
    return Tokenizer(read_tokenizer_files(Path(path)))


class Tokenizer:
    """A tokenizer with its special tokens and chat template. It holds no state that a call could change.

    Attributes:
        bos_token_id: the id that begins a text, or None.
        pad_token_id: the id that fills up a batch, or None.
        eos_token_ids: the ids that end a text, none or one.
        vocab_size: the number of tokens, added ones included.
        has_chat_template: whether `encode_chat` can be used.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = files.backend
        self._backend.no_truncation()
        self._backend.no_padding()
        _repair_decoder(self._backend)
        self._named_tokens = dict(files.named_tokens)
        self._chat_templates = dict(files.chat_templates)
        self._control = ControlTokens(self._backend, files.special_texts, files.chat_templates.values())
        added = self._backend.get_added_tokens_decoder().values()
        self._special_texts = frozenset(token.content for token in added if token.special)
        prefix_id = prompt_prefix_id(steps_of(self._backend.post_processor))
        bos_token_id, eos_token_id = self._named_id("bos_token"), self._named_id("eos_token")
        self.bos_token_id = prefix_id if bos_token_id is None else bos_token_id
        self.pad_token_id = self._named_id("pad_token")
        self.eos_token_ids: tuple[int, ...] = () if eos_token_id is None else (eos_token_id,)
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.has_chat_template = bool(self._chat_templates)
        asked = files.config.get("add_bos_token", files.config.get("tokenizer_class") in _CLASSES_WITH_BOS)
        self._begins_with_bos = self.bos_token_id is not None and (asked is True or prefix_id == self.bos_token_id)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        Args:
            text: any text without lone surrogates; it may be empty.
            add_special_tokens: add what the tokenizer puts around a text. BOS comes exactly once where the
                post-processor or the configuration (`add_bos_token`, Gemma's classes) demands it.
            parse_special: read the texts of control tokens as those tokens; otherwise they are plain text.

        Raises:
            TokenizerError: the text holds a lone surrogate, or the tokenizer cannot represent it.

        Warns:
            GenxWarning: the text begins with BOS, which the tokenizer adds anyway; it is there once.
        """
        _refuse_surrogates(text)
        backend = self._backend
        encoding = _encode(backend, text)
        if not parse_special and self._control.count(encoding.ids):
            backend = self._control.renamed
            encoding = _encode(backend, text)
        ids: list[int] = encoding.ids
        if not add_special_tokens:
            return ids
        if self._begins_with_bos and ids[:1] == [self.bos_token_id]:
            warnings.warn(
                f"the prompt begins with {printable(backend.id_to_token(ids[0]))}, which the tokenizer adds by itself; "
                "it is used once",
                GenxWarning,
                stacklevel=2,
            )
        processed: list[int] = backend.post_process(encoding, None, True).ids
        return _begin_once(processed, self.bos_token_id) if self._begins_with_bos else processed

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        parse_special: bool = False,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of a conversation as the chat template writes it; nothing is added, BOS is the template's matter.

        The rendering is tokenized as a whole, so that ordinary text has the ids it has in any text.

        Args:
            messages: JSON objects, each with "role" and "content".
            parse_special: read control-token texts within the messages as control tokens. Otherwise they are plain
                text, and only the template's own are control tokens.
            add_generation_prompt: let the template open the assistant's turn.

        Raises:
            TokenizerError: there is no chat template, or it refuses the messages, fails or goes beyond its bounds.
        """
        try:
            plain: list[dict[str, Any]] = json.loads(json.dumps([dict(message) for message in messages]))
        except (TypeError, ValueError) as error:
            raise TokenizerError(f"chat messages must be JSON objects: {printable(error)}") from error
        rendering = self._render(plain, add_generation_prompt)
        if parse_special:
            return list(_encode(self._backend, rendering).ids)
        guard = Guard(self._control.first_signs, plain)
        guarded = self._render(guard.protect(plain), add_generation_prompt)
        templates_own = self._control.find(guarded)
        if self._control.find(rendering) == templates_own:
            guarded = rendering
        text = guard.restore(guarded)
        ids: list[int] = _encode(self._backend, text).ids
        if self._control.count(ids) != len(templates_own):
            ids = _encode(self._control.renamed, guard.restore(self._control.rename(guarded))).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids, without any clean-up; ids outside the vocabulary say nothing."""
        known = [token_id for token_id in ids if 0 <= token_id <= _MAX_TOKEN_ID]
        with library_errors("the tokenizer cannot decode these ids"):
            return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def incremental(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one text whose ids come one by one."""

        def token_of(token_id: int) -> str | None:
            token = self._backend.id_to_token(token_id) if 0 <= token_id <= _MAX_TOKEN_ID else None
            return None if skip_special_tokens and token in self._special_texts else token

        stages = build_stages(steps_of(self._backend.decoder))
        return IncrementalDecoder(
            token_of, stages, lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens)
        )

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token with exactly this text, or None where there is none."""
        return self._backend.token_to_id(text) if text in self._special_texts else None

    def _named_id(self, role: str) -> int | None:
        text = self._named_tokens.get(role)
        return None if text is None else self._backend.token_to_id(text)

    @cached_property
    def _chat_template(self) -> "ChatTemplate":
        templates = self._chat_templates
        if not templates:
            raise TokenizerError("this checkpoint has no chat template; use its tokenizer on raw text instead")
        if "default" not in templates and len(templates) > 1:
            names = ", ".join(printable(name) for name in sorted(templates))
            raise TokenizerError(f"the chat templates are named {names}; expected: one, or one named default")
        from genx.tokenization.chat_template import ChatTemplate  # brings Jinja, which plain text does without

        return ChatTemplate(templates.get("default") or next(iter(templates.values())))

    def _render(self, messages: object, add_generation_prompt: bool) -> str:
        variables = {**self._named_tokens, "messages": messages, "tools": None, "documents": None}
        rendering = self._chat_template.render({**variables, "add_generation_prompt": add_generation_prompt})
        _refuse_surrogates(rendering)
        return rendering


def _encode(backend: Backend, text: str) -> Any:
    with library_errors("the tokenizer cannot represent the text"):
        return backend.encode(text, add_special_tokens=False)


def _begin_once(ids: list[int], first: int | None) -> list[int]:
    """The ids with `first` exactly once at the beginning."""
    start = next((index for index, token_id in enumerate(ids) if token_id != first), len(ids))
    return ids if first is None else [first, *ids[start:]]


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}; "
            "allowed: valid Unicode; remove it or put U+FFFD in its place"
        ) from error


def _repair_decoder(backend: Backend) -> None:
    """Give a byte-level vocabulary the byte-level decoder, where the file names another.

    ByteLevel writes a space as the sign "Ġ", which a decoder of another kind leaves in the text.
    """
    if not has_byte_level(steps_of(backend.pre_tokenizer)) or has_byte_level(steps_of(backend.decoder)):
        return
    if any("Ġ" in token for token in backend.get_vocab()):
        backend.decoder = ByteLevel()
