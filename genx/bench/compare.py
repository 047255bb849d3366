"""Two reports point by point: how many times as fast the second is, and whether that is more than chance. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genx.bench.estimates import Ratio, ratio_between
from genx.bench.records import IDENTITY, OK, Record, Report

RATES = ("prefill_tps", "decode_tps")


@dataclass(frozen=True)
class Pair:
    """One point of both reports; `ratios` are those of the second to the first, by the name of the rate."""

    base: Record
    other: Record
    ratios: Mapping[str, Ratio]

    def slower_by(self, tolerance: float) -> list[str]:
        """Rates that are lower by more than this share, significantly; all of them where the second failed alone."""
        if self.base.status == OK and self.other.status != OK:
            return [name for name in RATES if name in self.base.measures]
        return [name for name, ratio in self.ratios.items() if ratio.is_significant and ratio.median < 1 - tolerance]


@dataclass(frozen=True)
class Comparison:
    """What two reports say together.

    Attributes:
        pairs: points that both have, in the order of the first.
        only_base: points of the first alone.
        only_other: points of the second alone.
        differing: fields of a point that have one value in the first report and another one in the second: what is
            compared.
    """

    pairs: tuple[Pair, ...]
    only_base: tuple[Record, ...]
    only_other: tuple[Record, ...]
    differing: Mapping[str, tuple[Any, Any]]


def compare(base: Report, other: Report) -> Comparison:
    """Pair the points of two reports. Fields that differ throughout are what is compared, and do not part points."""
    differing = _differing(base.points, other.points)
    seconds = {_key(record, differing): record for record in other.points}
    firsts = {_key(record, differing): record for record in base.points}
    return Comparison(
        pairs=tuple(
            Pair(record, seconds[key], _ratios(record, seconds[key]))
            for key, record in firsts.items()
            if key in seconds
        ),
        only_base=tuple(record for key, record in firsts.items() if key not in seconds),
        only_other=tuple(record for key, record in seconds.items() if key not in firsts),
        differing=differing,
    )


def _differing(base: Sequence[Record], other: Sequence[Record]) -> dict[str, tuple[Any, Any]]:
    found = {}
    for place, name in enumerate(IDENTITY):
        first = {record.identity[place] for record in base}
        second = {record.identity[place] for record in other}
        if len(first) == len(second) == 1 and first != second:
            found[name] = (getattr(base[0], name), getattr(other[0], name))
    return found


def _key(record: Record, differing: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in zip(IDENTITY, record.identity, strict=True) if name not in differing)


def _ratios(base: Record, other: Record) -> dict[str, Ratio]:
    return {
        name: ratio_between(base.measures[name].samples, other.measures[name].samples)
        for name in RATES
        if _is_positive(base, name) and _is_positive(other, name)
    }


def _is_positive(record: Record, name: str) -> bool:
    return name in record.measures and min(record.measures[name].samples) > 0
