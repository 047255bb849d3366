"""What a process that measures is asked and what it answers, as lines of JSON. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from genx.bench.limits import Rates, Work
from genx.bench.sweep import Point, Workload
from genx.bench.timing import Sample

GENX = "genx"
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"

PEER_PACKAGES: Mapping[str, str] = {TRANSFORMERS: "transformers", LLAMA_CPP: "xllamacpp"}
"""The package that each peer is run through."""


@dataclass(frozen=True)
class Job:
    """One point for one engine.

    Attributes:
        engine: genx, transformers or llama.cpp.
        model: the checkpoint's folder.
        gguf: the file that llama.cpp loads; None for the other engines.
        device: where it runs, such as cpu.
        point: what is measured.
        workload: how it runs.
        vocab_size: random ids are below it.
        text: ids that prompts are cut from, instead of random ones.
    """

    engine: str
    model: str
    gguf: str | None
    device: str
    point: Point
    workload: Workload
    vocab_size: int
    text: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, source: dict[str, Any]) -> "Job":
        """The job that `to_json` wrote."""
        text = source["text"]
        return cls(
            **{
                **source,
                "point": Point(**source["point"]),
                "workload": Workload(**source["workload"]),
                "text": None if text is None else tuple(text),
            }
        )


@dataclass(frozen=True)
class Loaded:
    """What an engine is once its model is ready.

    Attributes:
        load_s: seconds that loading the model took; importing libraries is not in it.
        threads: that it runs with.
        work: what the point's tokens need, None where the engine does not tell.
        warnings: for whoever started the run.
    """

    load_s: float
    threads: int
    work: Work | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What is known before the first point.

    Attributes:
        device: that `auto` stands for.
        device_name: what it calls itself.
        torch: its version.
        arithmetic: for each dtype and quantisation asked for, the dtype that is computed in and the format of weights.
        context: positions that the model has.
        vocab_size: of the model.
        rates: what the machine can do with as many threads as asked for.
    """

    device: str
    device_name: str
    torch: str
    arithmetic: tuple[tuple[str, str], ...]
    context: int
    vocab_size: int
    rates: Rates


class Engine(Protocol):
    """A loaded model that runs one point."""

    def loaded(self) -> Loaded:
        """What is ready."""

    def run(self, seed: int) -> Sample:
        """Run once, with tokens that follow from the seed."""
