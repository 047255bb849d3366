"""The metadata of one architecture, read with the kinds that its values must have."""

import math
import struct
from collections.abc import Mapping
from typing import Any

from genx.errors import CheckpointError
from genx.gguf.parts import GgufModel
from genx.messages import printable
from genx.sampling_args import is_whole_number


class Facts:
    """The keys `ARCHITECTURE.*` of a GGUF file. A key that is absent reads None.

    Attributes:
        architecture: llama.cpp's name.
    """

    def __init__(self, model: GgufModel) -> None:
        """
        Raises:
            CheckpointError: the file names no architecture.
        """
        architecture = model.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise CheckpointError(f"{printable(model.path)} names no general.architecture; expected a language model")
        self.architecture = architecture
        self._path = model.path
        self._metadata: Mapping[str, Any] = model.metadata

    def integer(self, key: str) -> int | None:
        """A whole number of at least 0.

        Raises:
            CheckpointError: it is something else.
        """
        value = self.value(key)
        if value is None:
            return None
        if is_whole_number(value) and value >= 0:
            return int(value)
        raise self._refused(key, value, "a whole number")

    def number(self, key: str) -> float | None:
        """A finite number, as the shortest decimal that is the same float32.

        Raises:
            CheckpointError: it is something else.
        """
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refused(key, value, "a finite number")
        return shortest(value)

    def text(self, key: str) -> str | None:
        """A text.

        Raises:
            CheckpointError: it is something else.
        """
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value
        raise self._refused(key, value, "a text")

    def value(self, key: str) -> Any:
        """Whatever there is."""
        return self._metadata.get(f"{self.architecture}.{key}")

    def _refused(self, key: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(
            f"{printable(self._path)}: {printable(self.architecture)}.{key} is {printable(value)}; allowed: {allowed}"
        )


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.999999747378752e-06."""
    try:
        single = struct.pack("<f", value)
        candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next(short for short in candidates if struct.pack("<f", short) == single)
    except (OverflowError, StopIteration):
        return float(value)
