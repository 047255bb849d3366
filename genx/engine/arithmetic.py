"""What a model is computed in: the dtype, how its weights lie in memory, and which operations serve. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from genx.checkpoint import Source
from genx.engine.device import choose_device
from genx.errors import ArgumentError
from genx.messages import printable

QUANTIZE: Sequence[str] = ("none", "int8", "int4")
KERNELS: Sequence[str] = ("auto", "native", "torch")
STORED = "stored"
_HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Arithmetic:
    """How a model is computed, settled before a weight is read.

    Attributes:
        device: where.
        dtype: of the arithmetic; None: that of the stored weights.
        weights: how they are held: `stored`, as far as the operations allow it (see `held`), the name of a float dtype,
            int8 or int4.
        operations: native or torch.
        reason: why these operations, for a person.
    """

    device: str
    dtype: str | None
    weights: str
    operations: str
    reason: str

    @property
    def is_quantized(self) -> bool:
        """Whether the linear layers' weights become blocks of few bits."""
        return self.weights in QUANTIZE

    def keeps_blocks(self, source: Source) -> bool:
        """Whether blocks of 8 or 4 bits that are stored are computed with, rather than made floats.

        Those of a GGUF file are natively alone: torch makes them floats for every product, which a folder was converted
        for and a file was not.

        Raises:
            ArgumentError: the folder was quantised to another format than is asked for.
            CheckpointError: its configuration cannot be read.
        """
        made = source.quantization
        if made is not None and self.is_quantized and made.format != self.weights:
            raise ArgumentError(
                "{quantize} is {asked}, and {model} has weights of {format} already; drop {quantize}, or convert the "
                "original again",
                asked=self.weights,
                model=printable(source.path),
                format=made.format,
            )
        if self.device != "cpu" or not (self.is_quantized or self.weights == STORED):
            return False
        return made is not None or self.operations == "native"

    def held(self, source: Source, configured: str | None = None) -> str:
        """How most of the weights are held.

        Args:
            source: the model.
            configured: the dtype of its configuration, if it names one.

        Raises:
            ArgumentError, CheckpointError: see `keeps_blocks`.
        """
        keeps = self.keeps_blocks(source)
        if self.weights != STORED:
            return self.weights
        stored = source.prevailing_dtype()
        if (stored in QUANTIZE and keeps) or self.operations == "native":
            return stored
        if self.device == "cpu":
            return "float32"
        return configured or ("float32" if stored in QUANTIZE else stored)


def check_arithmetic(device: str, dtype: str, quantize: str, kernels: str) -> None:
    """Refuse names that mean nothing, and what cannot be had together; needs no torch.

    Args:
        device: one of `genx.engine.device.DEVICES`.
        dtype: one of `genx.engine.device.DTYPES`.
        quantize: one of QUANTIZE.
        kernels: one of KERNELS.

    Raises:
        ArgumentError: `quantize` or `kernels` is none of the allowed ones, or contradicts the device or the dtype.
    """
    for name, given, allowed in (("quantize", quantize, QUANTIZE), ("kernels", kernels, KERNELS)):
        if given not in allowed:
            raise ArgumentError(
                "{" + name + "} is {given!r}; allowed: {allowed}", given=given, allowed=", ".join(allowed)
            )
    for name, value in _for_the_cpu(quantize, kernels):
        if device not in ("auto", "cpu"):
            raise ArgumentError(
                "{" + name + "} {value} and {device} {given} are both given; it is for the CPU; drop one",
                value=value,
                given=device,
            )
        if dtype in _HALVES:
            raise ArgumentError(
                "{" + name + "} {value} and {dtype} {given} are both given; it computes in float32; drop {dtype}, and "
                "weights of 16 bits stay as they are stored",
                value=value,
                given=dtype,
            )


def choose_arithmetic(device: str, dtype: str, quantize: str, kernels: str) -> Arithmetic:
    """What is used for what is asked, on this machine; the arguments are those of `check_arithmetic`.

    On a CPU products in 16 bits take several times as long as in float32, so `auto` computes in float32: natively with
    the weights as they are stored, or through torch with floats made float32.

    Raises:
        ArgumentError: it cannot be had here.
    """
    check_arithmetic(device, dtype, quantize, kernels)
    chosen = choose_device(device)
    if chosen != "cpu":
        check_arithmetic(chosen, dtype, quantize, kernels)
        stored = None if dtype == "auto" else dtype
        return Arithmetic(chosen, stored, stored or STORED, "torch", f"native ones are for the CPU, this is {chosen}")
    if dtype in _HALVES:
        return Arithmetic("cpu", dtype, dtype, "torch", f"native ones compute in float32, {dtype} is asked for")
    native, reason = _native(kernels)
    operations = "native" if native else "torch"
    if quantize != "none":
        return Arithmetic("cpu", "float32", quantize, operations, reason)
    return Arithmetic("cpu", "float32", STORED if dtype == "auto" else "float32", operations, reason)


def _for_the_cpu(quantize: str, kernels: str) -> list[tuple[str, str]]:
    asked = [("quantize", quantize)] if quantize != "none" else []
    return [*asked, ("kernels", kernels)] if kernels == "native" else asked


def _native(kernels: str) -> tuple[bool, str]:
    if kernels == "torch":
        return False, "asked for"
    from genx.kernels.library import native_library

    library = native_library()
    if not isinstance(library, str):
        return True, library.description
    if kernels == "native":
        raise ArgumentError("{kernels} native cannot be had: {why}; allowed here: auto, torch", why=library)
    return False, f"there are no native ones: {library}"
