"""Ids in, text out as soon as it is final, at the same cost for every token."""

from collections.abc import Callable, Sequence

from genx.tokenization.decoder_stages import Stage


class IncrementalDecoder:
    """Turns ids into text one by one.

    The pieces that `push` and `flush` return, joined, are exactly what `Tokenizer.decode` makes of all the ids.
    A piece is released as soon as no later id can change it: within a character or a run of byte tokens nothing
    comes, and nothing ever waits for a space. Ids outside the vocabulary, and special tokens that are skipped,
    give "". Made by `Tokenizer.incremental`; one decoder serves one text.
    """

    def __init__(
        self,
        token_of: Callable[[int], str | None],
        stages: Sequence[Stage] | None,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """Args:
        token_of: the token of an id, or None where it gives no text.
        stages: the tokenizer's decoder in stages; None where it can only decode whole lists.
        decode: decodes a whole list; used in that case alone.
        """
        self._token_of = token_of
        self._stages = stages
        self._decode = decode
        self._undecoded: list[int] = []
        self._finished = False

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that has become final, often "".

        Raises:
            RuntimeError: the text was ended by `flush`.
        """
        if self._finished:
            raise RuntimeError("push() after flush(); a new text needs a new decoder")
        if self._stages is None:
            self._undecoded.append(token_id)
            return ""
        token = self._token_of(token_id)
        return "" if token is None else "".join(_run(self._stages, [token]))

    def flush(self) -> str:
        """End the text and return what was held back; "" when called again."""
        if self._finished:
            return ""
        self._finished = True
        if self._stages is None:
            return self._decode(self._undecoded)
        tokens: list[str] = []
        for stage in self._stages:
            tokens = [*_run([stage], tokens), *stage.finish()]
        return "".join(tokens)


def _run(stages: Sequence[Stage], tokens: list[str]) -> list[str]:
    for stage in stages:
        tokens = [final for token in tokens for final in stage.push(token)]
    return tokens
