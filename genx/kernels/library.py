"""The compiled operations: found, checked and given torch's threads, or a reason why not.

The C sources are in genx/kernels/native; scripts/hatch_build.py compiles them at install where there is a compiler.
They are called through ctypes with addresses of tensors, so shapes, dtypes and layouts are checked before: see
`projection.py` and `attention.py`.
"""

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

INTERFACE = 3
"""Raised with every change of a structure or an argument; `genx_interface` in native/library.c holds the same."""

FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4}
"""Numbers of native/matrix.h."""

ACTIVATIONS = {"identity": 0, "silu": 1, "tanh_gelu": 2, "gelu": 3, "relu": 4}
"""Numbers of native/activation.h."""

NORMS = {"root mean square": 1, "layer norm": 2}
"""Numbers of native/norm.h."""

SHORT_STEP = 24
"""N, the B * T of a step, up to which native products are faster than torch's even where torch has wider instructions,
and all layers are one call: a person who interrupts a longer one must not wait for the last of them."""

_RUNTIME = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


class Matrix(Structure):
    """`struct matrix` of native/matrix.h."""

    _fields_ = (
        ("values", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("format", c_int64),
    )


class Norm(Structure):
    """`struct norm` of native/norm.h."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("kind", c_int64), ("epsilon", c_float))


class ProjectionStructure(Structure):
    """`struct projection` of native/project.h."""

    _fields_ = (
        ("matrices", Matrix * 3),
        ("count", c_int64),
        ("columns", c_int64),
        ("outputs", c_int64),
        ("activation", c_int64),
        ("is_gated", c_int64),
        ("norm", Norm),
    )


class AttentionStructure(Structure):
    """`struct attention` of native/attend.h."""

    _fields_ = (
        ("heads", c_int64),
        ("groups", c_int64),
        ("head_size", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("query_norm", Norm),
        ("key_norm", Norm),
    )


class StepStructure(Structure):
    """`struct step` of native/attend.h."""

    _fields_ = (
        ("tokens", c_int64),
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("visible", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("angles", c_int64),
        ("spans", c_int64),
        ("starts", c_void_p),
    )


class LayerStructure(Structure):
    """`struct layer` of native/layers.c."""

    _fields_ = (
        ("into_heads", POINTER(ProjectionStructure)),
        ("attention", POINTER(AttentionStructure)),
        ("out_of_heads", POINTER(ProjectionStructure)),
        ("inner", POINTER(ProjectionStructure)),
        ("down", POINTER(ProjectionStructure)),
    )


@dataclass(frozen=True)
class Library:
    """The loaded operations. Functions that return a number return 0, or 1 if there is no memory."""

    level: str
    """The instructions that it was compiled for."""

    shares_threads: bool
    """Whether it runs on torch's threads; otherwise on the caller's alone."""

    project: Callable[..., int]
    normalize: Callable[..., None]
    attend: Callable[..., int]
    layers: Callable[..., int]
    activate: Callable[..., None]
    expand: Callable[..., None]

    quantize: Callable[..., int]
    """Returns 0, or the sum of 1 for a weight that is not finite and 2 for one that is too large."""

    @property
    def rows_max(self) -> int:
        """N up to which it is faster than torch's products of float32 weights."""
        is_as_wide = self.level != "baseline" and torch.backends.cpu.get_cpu_capability() == "AVX2"
        return sys.maxsize if is_as_wide else SHORT_STEP

    @property
    def description(self) -> str:
        """What it is, for a person."""
        threads = "torch's threads" if self.shares_threads else "one thread, for torch's could not be found"
        return f"compiled for {self.level}, on {threads}"


@cache
def native_library() -> Library | str:
    """The compiled operations, or why there are none."""
    if sys.byteorder != "little":
        return "the compiled operations need a little-endian processor"
    folder = Path(__file__).parent
    baseline = folder / f"native-baseline{_SUFFIX}"
    if not baseline.is_file():
        return "they were not compiled when genx was installed (no C compiler); install one, then genx again"
    faster = folder / f"native-avx2{_SUFFIX}"
    loaded = load_library(baseline, "baseline")
    if isinstance(loaded, Library) and faster.is_file() and ctypes.CDLL(str(baseline)).genx_has_avx2():
        return load_library(faster, "avx2")
    return loaded


def load_library(path: Path, level: str) -> Library | str:
    """The operations in one library file, or why it cannot be used."""
    try:
        handle = ctypes.CDLL(str(path))
        interface = handle.genx_interface()
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if interface != INTERFACE:
        return f"{path.name} is of another version of genx; install genx again"
    project = handle.genx_project
    project.argtypes = [POINTER(ProjectionStructure), c_void_p, c_void_p, c_void_p, c_int64]
    project.restype = c_int32
    normalize = handle.genx_normalize
    normalize.argtypes = [POINTER(Norm), c_void_p, c_void_p, c_int64, c_int64]
    normalize.restype = None
    attend = handle.genx_attend
    attend.argtypes = [POINTER(AttentionStructure), c_void_p, c_void_p, c_void_p, c_void_p]
    attend.restype = c_int32
    layers = handle.genx_layers
    layers.argtypes = [c_void_p, c_int64, c_void_p, c_void_p]
    layers.restype = c_int32
    activate = handle.genx_activate
    activate.argtypes = [c_int64, c_void_p, c_void_p, c_int64]
    activate.restype = None
    expand = handle.genx_expand
    expand.argtypes = [POINTER(Matrix), c_int64, c_int64, c_void_p]
    expand.restype = None
    quantize = handle.genx_quantize
    quantize.argtypes = [POINTER(Matrix), c_int64, c_void_p, c_void_p]
    quantize.restype = c_int64
    return Library(level, _share_threads(handle), project, normalize, attend, layers, activate, expand, quantize)


def _share_threads(handle: ctypes.CDLL) -> bool:
    """Hand the library torch's thread team, so that torch.set_num_threads governs both.

    The entry points are those of GNU's OpenMP runtime, which LLVM's offers too. A lookup through the library that
    torch computes with finds the runtime that torch itself uses, by whatever file name.
    """
    if torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
        try:
            runtime = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            functions = [getattr(runtime, name) for name in _RUNTIME]
        except (OSError, AttributeError):
            return False
        handle.genx_set_team.argtypes = [c_void_p] * len(functions)
        handle.genx_set_team.restype = None
        handle.genx_set_team(*(ctypes.cast(function, c_void_p) for function in functions))
        return True
    return False
