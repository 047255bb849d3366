"""Jobs for the batch, and what the loop of one prompt makes of them."""

import random
from collections.abc import Iterator, Sequence

import torch

from genx.core.base_model import BaseModel
from genx.engine.continuation import Summary
from genx.engine.prompt import Prompt
from genx.engine.rows.active_row import Job
from genx.engine.rows.batch import Advanced, Batch, Finished
from genx.engine.settings import GenerationSettings
from tests.architectures import CONTEXT, VOCAB

PLENTY = 1 << 30


class Ids:
    """Decodes each id as its number."""

    def push(self, token_id: int) -> str:
        return f"{token_id},"

    def flush(self) -> str:
        return ""


def job(place: int, ids: Sequence[int], **settings: object) -> Job:
    return Job(place, Prompt(tuple(ids)), GenerationSettings(**settings), Ids)  # type: ignore[arg-type]


def random_jobs(count: int, seed: int = 0) -> list[Job]:
    """Prompts of 1 to T_max tokens, some with a common beginning; greedy and sampled, within the context and past."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB) for _ in range(18)]
    jobs = []
    for place in range(count):
        ids = [rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT - 18))]
        sampling = {"do_sample": True, "seed": place, "temperature": 0.9} if place % 2 else {}
        prompt = shared + ids if place % 3 == 0 else ids
        jobs.append(job(place, prompt, max_new_tokens=rng.randint(1, 20), **sampling))
    return jobs


def alone(model: BaseModel, one: Job) -> tuple[int, ...]:
    """The new tokens of a job by `generate`."""
    settings = one.settings
    generator = None if settings.seed is None else torch.Generator().manual_seed(settings.seed)
    ids = model.generate(
        torch.tensor([one.prompt.ids]),
        settings.max_new_tokens,
        settings.do_sample,
        settings.temperature,
        generator=generator,
    )
    return tuple(ids[0, len(one.prompt.ids) :].tolist())


def run(batch: Batch, jobs: Sequence[Job]) -> tuple[dict[int, Summary], list[Advanced]]:
    """All summaries by place, and all turns."""
    events: Iterator[Finished | Advanced] = batch.run(iter(jobs))
    summaries, turns = {}, []
    for event in events:
        if isinstance(event, Finished):
            summaries[event.job.place] = event.summary
        else:
            turns.append(event)
    return summaries, turns
