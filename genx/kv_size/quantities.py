"""Token counts and byte counts as people write them, read to exact whole numbers and back."""

import re
from dataclasses import dataclass

from genx.errors import UsageError

LARGEST_TOKENS = 1 << 40  # a million times the longest published context; more is a slip of the keyboard
LARGEST_BATCH = 1 << 24
LARGEST_BYTES = 1 << 60

_TOKEN_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_BYTE_UNITS = {
    "": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_AMBIGUOUS = r"[0-9._]+\s*[kKmMgGtTbB]"
_NUMBER = r"(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)"


@dataclass(frozen=True)
class Memory:
    """Some devices of one size: `2x24GiB`."""

    devices: int
    each: int

    @property
    def total(self) -> int:
        """Bytes of all devices together."""
        return self.devices * self.each


@dataclass(frozen=True)
class Reserve:
    """Memory kept free for everything that is neither weights nor cache: a share of it, as a ratio, or bytes."""

    numerator: int = 0
    denominator: int = 1
    fixed: int = 0

    def of(self, memory: int) -> int:
        """Bytes kept free out of `memory` bytes, rounded up."""
        return -(-memory * self.numerator // self.denominator) + self.fixed


NO_RESERVE = Reserve()


def parse_count(text: str, what: str, largest: int, smallest: int = 0) -> int:
    """A whole number such as 131072, 131_072 or 128k (k = 1024, M = 1024 x 1024).

    Raises:
        UsageError: it is none, or not from `smallest` to `largest`; the message names `what`.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(?P<unit>[kKmM]?)", text.strip())
    value, over = _scaled(match, _TOKEN_UNITS) if match else (-1, 0)
    if over or not smallest <= value <= largest or _is_grouped(text):
        raise UsageError(
            f"{what} is {text!r}; allowed: a whole number from {smallest} to {largest:,}, "
            "written like 131072, 131_072 or 128k (k = 1024)"
        )
    return value


def parse_counts(text: str, what: str, largest: int, smallest: int = 0) -> tuple[int, ...]:
    """Several whole numbers, separated by commas."""
    return tuple(parse_count(part, what, largest, smallest) for part in text.split(","))


def parse_bytes(text: str, what: str) -> int:
    """A byte count such as 25769803776, 24GiB (1024 based) or 24GB (1000 based), rounded down to whole bytes.

    Raises:
        UsageError: it is none; the message names `what`.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(?P<unit>[A-Za-z]*)", text.strip())
    value, _ = _scaled(match, _BYTE_UNITS) if match else (-1, 0)
    if not 0 <= value <= LARGEST_BYTES:
        hint = "; a bare K, M, G or B could mean several things" if re.fullmatch(_AMBIGUOUS, text.strip()) else ""
        raise UsageError(
            f"{what} is {text!r}; allowed: bytes, or a number with KiB, MiB, GiB, TiB (x 1024) or "
            f"kB, MB, GB, TB (x 1000){hint}"
        )
    return value


def parse_memory(text: str) -> Memory:
    """`24GiB`, or `2x24GiB` for two devices of that size."""
    match = re.fullmatch(r"\s*([0-9]+)\s*[xX*]\s*(.+)", text)
    devices = parse_count(match[1], "--memory's number of devices", 1 << 16, smallest=1) if match else 1
    each = parse_bytes(match[2] if match else text, "--memory")
    if each == 0:
        raise UsageError(f"--memory is {text!r}; allowed: more than 0 bytes")
    return Memory(devices, each)


def parse_reserve(text: str) -> Reserve:
    """`10%` of the memory, or bytes."""
    match = re.fullmatch(rf"{_NUMBER}\s*%", text.strip())
    if match is None:
        return Reserve(fixed=parse_bytes(text, "--reserve"))
    numerator, denominator = decimal_ratio(match["number"])
    if numerator > 100 * denominator:
        raise UsageError(f"--reserve is {text!r}; allowed: 0% to 100% of the memory, or bytes")
    return Reserve(numerator, 100 * denominator)


def parse_mix(text: str) -> tuple[tuple[int, int], ...]:
    """`20x8k,4x128k`: sequences of different lengths, as (how many, tokens)."""
    mix = []
    for part in text.split(","):
        count, times, tokens = part.strip().partition("x")
        if not times:
            raise UsageError(f"--mix is {text!r}; allowed: SEQUENCESxTOKENS, several by commas, such as 20x8k,4x128k")
        mix.append(
            (
                parse_count(count, "--mix's number of sequences", LARGEST_BATCH, smallest=1),
                parse_count(tokens, "--mix's tokens", LARGEST_TOKENS),
            )
        )
    return tuple(mix)


def human_bytes(count: int, *, si: bool = False) -> str:
    """`16.00 GiB`, or `17.18 GB` with `si`; below one unit in bytes."""
    base, names = (1000, ("kB", "MB", "GB", "TB")) if si else (1024, ("KiB", "MiB", "GiB", "TiB"))
    if abs(count) < base:
        return f"{count} B"
    power = next((power for power in range(1, len(names)) if abs(count) < base ** (power + 1)), len(names))
    return f"{count / base**power:,.2f} {names[power - 1]}"


def decimal_ratio(number: str) -> tuple[int, int]:
    """A decimal such as 1.25 as an exact ratio, here 125 / 100."""
    whole, _, fraction = number.replace("_", "").partition(".")
    return int(whole + fraction), 10 ** len(fraction)


def _scaled(match: re.Match[str], units: dict[str, int]) -> tuple[int, int]:
    """The number times its unit, in whole ones, and what is left over; -1 for a unit that there is not."""
    factor = units.get(match["unit"].lower())
    if factor is None:
        return -1, 0
    numerator, denominator = decimal_ratio(match["number"])
    return divmod(numerator * factor, denominator)


def _is_grouped(text: str) -> bool:
    """Whether the text looks like the tail of 131,072 cut at its comma."""
    return re.fullmatch(r"0[0-9][0-9]", text.strip()) is not None
