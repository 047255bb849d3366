"""What is to be measured: points, and lists and ranges of numbers that sweep over them. No torch."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from genx.errors import ArgumentError

LARGEST_TOKENS = 1 << 20
LARGEST_BATCH = 1 << 14
MOST_VALUES = 1000

_NUMBER = r"[0-9]{1,12}"
_RANGE = re.compile(rf"(?P<first>{_NUMBER})(?:-(?P<last>{_NUMBER})(?:(?P<how>[+*])(?P<by>{_NUMBER}))?)?")


@dataclass(frozen=True)
class Point:
    """One cell of a sweep.

    Attributes:
        prompt_tokens: of each row, read within the measured time.
        new_tokens: of each row; 0 measures the prompt alone.
        batch: rows that run at once.
        depth: tokens of each row that are in the cache before the clock starts.
        dtype: of the arithmetic.
        threads: of the CPU; None leaves the number to the engine.
        weights: the format that they are held in: `dtype` itself, another float, int8 or int4.
    """

    prompt_tokens: int
    new_tokens: int
    batch: int
    depth: int
    dtype: str
    threads: int | None
    weights: str

    @property
    def context(self) -> int:
        """Tokens of a row when it ends."""
        return self.depth + self.prompt_tokens + self.new_tokens

    def __str__(self) -> str:
        depth = f" after {self.depth}" if self.depth else ""
        return f"{self.prompt_tokens}+{self.new_tokens}{depth}, batch {self.batch}, {self.weights}"


@dataclass(frozen=True)
class Workload:
    """What is the same at every point of a sweep.

    Attributes:
        cache: keep keys and values between steps.
        forward_only: the model alone; the tokens after the prompt are given, not chosen.
        do_sample: see `genx.core.generation.sample_next_token`, as the next three.
        temperature: as there.
        top_k: as there.
        top_p: as there.
        kernels: which operations compute: one of `genx.engine.arithmetic.KERNELS`.
        prompt: `random`, or `file:` and the hash of the text that prompts are cut from.
    """

    cache: bool = True
    forward_only: bool = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    kernels: str = "auto"
    prompt: str = "random"


def parse_sweep(name: str, text: str, *, smallest: int, largest: int) -> tuple[int, ...]:
    """Whole numbers and ranges between commas: `1,2,8`, `1-4`, `0-4096+1024`, `128-1024*2`; each number once.

    Args:
        name: of the argument, for the message.
        text: as typed.
        smallest: number that is allowed.
        largest: number that is allowed.

    Raises:
        ArgumentError: it is nothing of the kind, outside the limits, or more than 1,000 numbers.
    """
    found = dict.fromkeys(itertools.islice(_values(name, text, smallest, largest), MOST_VALUES + 1))
    if len(found) > MOST_VALUES:
        raise ArgumentError(
            "{" + name + "} is {given!r}; allowed: at most {most:,} numbers", given=text, most=MOST_VALUES
        )
    return tuple(found)


def _values(name: str, text: str, smallest: int, largest: int) -> Iterator[int]:
    for part in text.split(","):
        for value in _range(part.strip()):
            if value is None or not smallest <= value <= largest:
                raise ArgumentError(
                    "{" + name + "} is {given!r}; allowed: whole numbers from {smallest} to {largest:,} and ranges of "
                    "them, with commas between: 1,2,8 or 0-4096+1024 or 128-1024*2",
                    given=text,
                    smallest=smallest,
                    largest=largest,
                )
            yield value


def _range(part: str) -> Iterator[int | None]:
    """The numbers of a range, or of a single number; None for what is neither."""
    match = _RANGE.fullmatch(part)
    if match is None:
        yield None
        return
    value, by = int(match["first"]), int(match["by"] or 1)
    last = int(match["last"] or value)
    multiplies = match["how"] == "*"
    if value > last or by < (2 if multiplies else 1) or (multiplies and value == 0):
        yield None
        return
    while value <= last:
        yield value
        value = value * by if multiplies else value + by


def sweep(
    *,
    prompt_tokens: Sequence[int],
    new_tokens: Sequence[int],
    batch: Sequence[int],
    depth: Sequence[int],
    arithmetic: Sequence[tuple[str, str]],
    threads: Sequence[int | None],
) -> list[Point]:
    """Every combination, the last tokens changing fastest; `arithmetic` pairs a dtype with a format of weights."""
    return [
        Point(prompt, new, rows, seen, dtype, cores, weights)
        for (dtype, weights), cores, rows, seen, prompt, new in itertools.product(
            arithmetic, threads, batch, depth, prompt_tokens, new_tokens
        )
    ]
