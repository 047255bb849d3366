"""One row while it generates: its text, its own memory and its own randomness."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genx.core.cache import LayerCache, cache_nbytes
from genx.core.generation import sample_next_token
from genx.core.growing import GrowingColumns
from genx.engine.continuation import Continuation, Summary, TextDecoder
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.errors import GenerationError, GenxError


@dataclass(frozen=True)
class Job:
    """One text to generate: `settings.seed` is the row's own; `place` tells whoever asked which one it is."""

    place: int
    prompt: Prompt
    settings: GenerationSettings
    new_decoder: Callable[[], TextDecoder]
    stop_token_ids: frozenset[int] = frozenset()
    show_eos: bool = False

    def positions(self, context: int) -> int:
        """What its text can come to in a model of `context` positions."""
        return min(len(self.prompt.ids) + self.settings.max_new_tokens, context)


class ActiveRow:
    """A job that has begun."""

    def __init__(self, job: Job, context: int, device: torch.device, clock: Callable[[], float]) -> None:
        """
        Args:
            job: what is to be generated.
            context: positions that the model has.
            device: the model's.
            clock: seconds since whenever.
        """
        settings = job.settings
        final_length = len(job.prompt.ids) + settings.max_new_tokens
        self.job = job
        self.at_most = job.positions(context)  # positions that its cache can come to
        self.text = GrowingColumns(torch.tensor([job.prompt.ids], device=device), final_length)  # [1, n]
        self.cache: list[LayerCache] | None = None
        self.read = 0  # tokens that the cache has seen
        self.shares = 0  # first tokens of the prompt to be kept for other rows once they are read; 0: none
        self._run = Continuation(job.new_decoder(), job.prompt, settings, job.stop_token_ids, job.show_eos, clock)
        self.sampling = (settings.do_sample, settings.temperature, settings.top_k, settings.top_p)
        self.generator: torch.Generator | None = None
        if settings.seed is not None:
            self.generator = torch.Generator(device).manual_seed(settings.seed)
        self._left = settings.max_new_tokens
        self._has_failed = False

    @property
    def is_finished(self) -> bool:
        """Whether no token follows."""
        return self._left == 0 or self._has_failed or self._run.is_finished(lambda: False)

    @property
    def generates(self) -> bool:
        """Whether the prompt is read and the first token chosen."""
        return self.text.length > len(self.job.prompt.ids)

    @property
    def unread(self) -> int:
        """Tokens to be read next: of the prompt at most those to be shared."""
        return (self.shares or self.text.length) - self.read

    def next_tokens(self, count: int) -> Tensor:
        """The next `count` tokens to be read, [1, count]."""
        return self.text.columns[:, self.read : self.read + count]

    def append(self, token: Tensor) -> None:
        """Append the next token, [1, 1]."""
        self._left -= 1
        self.text.append(token)
        for _ in self._run.take(int(token), cache_nbytes(self.cache)):
            pass  # a row is shown as a whole

    def fail(self, error: GenxError) -> None:
        """End with this error; the text so far stays."""
        self._has_failed = True
        self._run.fail(error)

    def summary(self) -> Summary:
        """What it came to."""
        for _ in self._run.finish():
            pass
        return self._run.summary(peak_memory=None)


def choose_tokens(rows: Sequence[tuple[ActiveRow, Tensor]]) -> None:
    """Give each row the token chosen from its logits [1, V], those of equal settings at once."""
    alike: dict[object, list[tuple[ActiveRow, Tensor]]] = {}
    for row, logits in rows:
        # Rows without a generator draw from torch's, one after the other.
        draws_alone = row.generator is None and row.job.settings.do_sample
        alike.setdefault(row if draws_alone else row.sampling, []).append((row, logits))
    for group in alike.values():
        first, _ = group[0]
        generators = [row.generator for row, _ in group if row.generator is not None] or None
        try:
            tokens = sample_next_token(torch.cat([logits for _, logits in group]), *first.sampling, generators)
        except GenerationError as error:
            if len(group) == 1:
                first.fail(error)
            else:
                for one in group:  # which of them it is
                    choose_tokens([one])
            continue
        for (row, _), token in zip(group, torch.split(tokens, 1), strict=True):
            row.append(token)
