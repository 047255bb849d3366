"""From a row to the job that the batch runs: token ids that fit, and what decodes the answer. No torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from genx.engine.continuation import TextDecoder
from genx.engine.prompt import Prompt, check_prompt_ids, encode_prompt, fit_prompt
from genx.engine.rows.plan import Row
from genx.engine.rows.requests import RowRequest
from genx.engine.rows.template import RowError

if TYPE_CHECKING:
    from genx.tokenization import Tokenizer


@dataclass(frozen=True)
class Encoding:
    """How prompts are read.

    Attributes:
        tokenizer: the checkpoint's.
        context: positions that the model has.
        vocab_size: ids that it has embeddings for.
        system: the chat's system message; a row whose messages begin with one keeps its own.
        raw: leave the chat template out.
        parse_special: see `encode_prompt`.
        bos_token_id: see `encode_prompt`.
        truncate: `left` or `right` cuts prompts that are longer than the context there; None refuses them.
        special: show special tokens in answers.
    """

    tokenizer: "Tokenizer"
    context: int
    vocab_size: int
    system: str | None = None
    raw: bool = False
    parse_special: bool | None = None
    bos_token_id: int | None = None
    truncate: str | None = None
    special: bool = False

    def prompt(self, row: Row) -> Prompt:
        """The token ids of a row's prompt.

        Raises:
            GenxError: they do not fit, or the tokenizer or chat template cannot take the prompt.
        """
        if row.request is None:
            raise RowError(row.error or "the row asks for nothing")
        ids = self._ids(row.request)
        check_prompt_ids(ids, self.vocab_size)
        return fit_prompt(ids, None, self.context, truncate=self.truncate)

    def stop_token_ids(self, stop: tuple[str, ...]) -> frozenset[int]:
        """The special tokens that are spelled by stop texts."""
        ids = map(self.tokenizer.special_token_id, stop)
        return frozenset(token_id for token_id in ids if token_id is not None)

    def key(self, row: Row, prompt: Prompt) -> str | None:
        """The key of the answer to this prompt of a row."""
        return row.key(truncate=self.truncate) if prompt.dropped else row.key()

    def possible_keys(self, row: Row) -> list[str | None]:
        """The keys that a row's answer may have, whether or not its prompt has to be cut."""
        return [row.key()] if self.truncate is None else [row.key(), row.key(truncate=self.truncate)]

    def decoder(self) -> TextDecoder:
        """What decodes one answer."""
        return self.tokenizer.incremental(skip_special_tokens=not self.special)

    def _ids(self, request: RowRequest) -> list[int]:
        if request.messages is None:
            assert request.prompt is not None
            return encode_prompt(
                self.tokenizer,
                request.prompt,
                system=self.system,
                raw=self.raw,
                parse_special=self.parse_special,
                bos_token_id=self.bos_token_id,
            )
        if self.raw or not self.tokenizer.has_chat_template:
            raise RowError(
                "'messages' need a chat template, and "
                + ("--raw switches it off" if self.raw else "this checkpoint has none")
                + "; give 'prompt' instead"
            )
        messages = list(request.messages)
        if self.system is not None and messages[0].get("role") != "system":
            messages.insert(0, {"role": "system", "content": self.system})
        return self.tokenizer.encode_chat(messages, parse_special=bool(self.parse_special))
