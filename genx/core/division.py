"""How the weights of a block are divided among processes that compute it together: tensor parallelism.

Shoeybi et al. 2019, arXiv:1909.08053, section 3: of two matrices in a row the first is cut between its outputs and the
second between its inputs, so that one sum over the processes serves for both.

A block says in `division` what of it is divided; genx/parallel does it. What no block names, every process computes
whole. Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Units:
    """What a dimension is made of, none of which is cut: `count` runs of `size` channels.

    Attributes:
        field: the configuration's name for the count.
        count: how many.
        size: channels of one.
        repeats: whether, where there are fewer than processes, several processes hold the same one.
    """

    field: str
    count: int
    size: int = 1
    repeats: bool = False

    def allows(self, processes: int) -> bool:
        """Whether so many processes can each hold equally many."""
        return self.count % processes == 0 or (self.repeats and processes % self.count == 0)

    def run_of(self, rank: int, processes: int) -> tuple[int, int]:
        """The first channel that a process holds, and how many."""
        held = max(self.count // processes, 1)
        return rank * self.count // processes * self.size, held * self.size


@dataclass(frozen=True)
class Outputs:
    """A linear layer of which a process computes some outputs: of each part, one after another in the weight, its run.

    Biases are cut with them.
    """

    parts: tuple[Units, ...]


@dataclass(frozen=True)
class Inputs:
    """A linear layer that a process applies to the inputs that it has; results are summed, the bias counts once."""

    units: Units


@dataclass(frozen=True)
class Channels:
    """A norm over channels of which each process has its own."""

    units: Units


@dataclass(frozen=True)
class Slice:
    """A parameter of which a process holds a run along one dimension."""

    units: Units
    dim: int = 0


@dataclass(frozen=True)
class Once:
    """A parameter that counts once in a sum over processes: the first holds it, the others zeros."""


@dataclass(frozen=True)
class Summed:
    """A block whose outputs are summed over the processes, in place of those of the linear layers in it."""


@dataclass(frozen=True)
class Vocabulary:
    """A token embedding, or the head: rows of the weight are divided, evenly or not."""


Share = Outputs | Inputs | Channels | Slice | Once | Summed | Vocabulary
Division = Mapping[str, Share]


@runtime_checkable
class Divided(Protocol):
    """A block whose weights can be divided."""

    @property
    def division(self) -> Division:
        """What of it is divided and how, by the names of modules in it, of parameters, or "" for itself."""


def two_layers(first: tuple[str, ...], second: str, inner: int) -> Division:
    """The division of a feed-forward block: the layers to the inner size I, and the one back."""
    units = Units("intermediate_size", inner)
    return {**dict.fromkeys(first, Outputs((units,))), second: Inputs(units)}
