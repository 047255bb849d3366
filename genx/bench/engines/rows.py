"""The rows of ids that every engine is given alike, and which points none can run. No torch."""

from genx.bench.jobs import Job
from genx.bench.prompts import random_rows, text_rows
from genx.bench.sweep import Point
from genx.errors import UsageError


def rows_of(job: Job, seed: int) -> list[list[int]]:
    """The ids of a run, the depth's first; with `forward_only` those of the new tokens too."""
    length = job.point.depth + job.point.prompt_tokens + (job.point.new_tokens if job.workload.forward_only else 0)
    if job.text is not None:
        return text_rows(seed, job.point.batch, length, job.text)
    return random_rows(seed, job.point.batch, length, job.vocab_size)


def check_context(point: Point, context: int) -> None:
    """Refuse a point whose depth and prompt do not fit into the model's context, as `genx run` refuses such a prompt.

    Raises:
        UsageError: they do not.
    """
    if point.depth + point.prompt_tokens > context:
        raise UsageError(
            f"depth {point.depth:,} and prompt {point.prompt_tokens:,} are more than the model's context of "
            f"{context:,} tokens; give less of either"
        )
