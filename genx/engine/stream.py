"""One prompt as a stream of events: the prompt being read, pieces of text, and in the end one summary."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from genx.core.generation import ContextExceeded, GenerationEvent, Prefilled
from genx.engine.continuation import Continuation, FinishReason, Summary, TextDecoder, TextPiece
from genx.engine.memory import peak_memory_bytes
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.errors import GenerationError, GenxError

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

__all__ = ["FinishReason", "Steps", "StreamEvent", "Summary", "TextDecoder", "TextPiece", "generation_steps", "stream"]

StreamEvent = Prefilled | ContextExceeded | TextPiece | Summary
Steps = Callable[["BaseModel", Prompt, GenerationSettings, frozenset[int]], Iterator[GenerationEvent]]


def stream(
    model: "BaseModel",
    decoder: TextDecoder,
    prompt: Prompt,
    settings: GenerationSettings,
    *,
    stop_token_ids: frozenset[int] = frozenset(),
    steps: "Steps | None" = None,
    show_eos: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StreamEvent]:
    """Continue one prompt.

    Args:
        model: in eval mode, on its device.
        decoder: fresh, for this text.
        prompt: what the model reads.
        settings: what takes effect.
        stop_token_ids: special tokens that `settings.stop` spells; one of them ends the text and is not part of it.
        steps: takes the steps; None is `generation_steps`.
        show_eos: let the decoder see the model's own end, whose text it may show.
        interrupted: asked between steps; True ends the run and keeps its text.
        clock: seconds since whenever.

    Yields:
        `Prefilled`, `TextPiece` and, once, `ContextExceeded`; last of all a `Summary`, even of a run that failed for
        want of memory or of finite logits.

    Raises:
        ArgumentError: (a ValueError) an argument that the model does not allow.
    """
    run = Continuation(decoder, prompt, settings, stop_token_ids, show_eos, clock)
    try:
        for event in (steps or generation_steps)(model, prompt, settings, stop_token_ids):
            if isinstance(event, Prefilled | ContextExceeded):
                yield event
            else:
                yield from run.take(int(event.token_ids), event.cache_bytes)
            if run.is_finished(interrupted):
                break
    except GenerationError as error:
        run.fail(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        run.fail(GenxError(f"out of memory: {error}; fewer tokens, a smaller dtype or another device may help"))
    yield from run.finish()
    yield run.summary(peak_memory_bytes(str(model.device)))


def generation_steps(
    model: "BaseModel", prompt: Prompt, settings: GenerationSettings, stop_token_ids: frozenset[int]
) -> Iterator[GenerationEvent]:
    """`BaseModel.generate_steps` for one prompt; the arguments are those of `stream`.

    Raises:
        ArgumentError: (a ValueError) an argument that the model does not allow.
    """
    device = model.device
    generator = None
    if settings.seed is not None:
        generator = torch.Generator(device).manual_seed(settings.seed)
    mask = prompt.attention_mask
    return model.generate_steps(
        torch.tensor([prompt.ids], device=device),  # [1, P]
        settings.max_new_tokens,
        settings.do_sample,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.use_cache,
        None if mask is None else torch.tensor([mask], device=device),
        [*settings.eos_token_ids, *sorted(stop_token_ids)],
        settings.pad_token_id,
        generator=generator,
    )
