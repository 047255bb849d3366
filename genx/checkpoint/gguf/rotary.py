"""Rotary positions: what GGUF's keys and tensors say of them, as config.json says it."""

import math
import struct
from collections.abc import Sequence
from typing import Any

from genx.checkpoint.gguf.facts import Facts, shortest
from genx.errors import CheckpointError
from genx.gguf.parts import GgufModel, PackedTensor
from genx.messages import printable

# Not in the file, which holds the factors that follow from them; they are the same in all models of Llama 3.1 to 3.3.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_MOST_FACTORS = 1 << 15


def rotary_fields(model: GgufModel, facts: Facts, head_dim: int, *, theta: float = 10_000.0) -> dict[str, Any]:
    """`rope_theta`, and `rope_scaling` where there is any.

    Args:
        theta: the architecture's own, where the file is silent.

    Raises:
        CheckpointError: the file stores frequencies that genx has no name for.
    """
    base = facts.number("rope.freq_base")
    fields: dict[str, Any] = {"rope_theta": theta if base is None else base}
    scaling = _scaling(facts)
    if (name := "rope_freqs.weight") in model.tensors:
        factors = _read_factors(name, model.tensors[name])
        scaling = _named_factors(factors, fields["rope_theta"], head_dim, model) or scaling
    scaling = _longrope(model, facts) or scaling
    if scaling is not None:
        fields["rope_scaling"] = scaling
    return fields


def _scaling(facts: Facts) -> dict[str, Any] | None:
    kind = facts.text("rope.scaling.type")
    factor = facts.number("rope.scaling.factor") or facts.number("rope.scale_linear")
    if kind in (None, "none", "linear") and factor not in (None, 1.0) and kind != "none":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor is not None:
        scaling = {"rope_type": "yarn", "factor": factor}
        original = facts.integer("rope.scaling.original_context_length")
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        scaling |= {name: value for key, name in _YARN.items() if (value := facts.number(key)) is not None}
        return scaling
    return None if kind in (None, "none", "linear", "yarn") else {"rope_type": kind}


def _longrope(model: GgufModel, facts: Facts) -> dict[str, Any] | None:
    """Phi-3's factors for short and for long texts; llama.cpp chooses by the size of its cache, genx by the text."""
    scaling: dict[str, Any] = {}
    for kind in ("short", "long"):
        name = f"rope_factors_{kind}.weight"
        if name in model.tensors:
            scaling[f"{kind}_factor"] = [shortest(factor) for factor in _read_factors(name, model.tensors[name])]
    if not scaling:
        return None
    told = {
        "attention_factor": facts.number("rope.scaling.attn_factor"),
        "original_max_position_embeddings": facts.integer("rope.scaling.original_context_length"),
    }
    return {"rope_type": "longrope", **scaling, **{name: value for name, value in told.items() if value is not None}}


def _read_factors(name: str, tensor: PackedTensor) -> Sequence[float]:
    if tensor.element.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MOST_FACTORS:
        raise CheckpointError(
            f"{printable(tensor.path)}: {name} is {tensor.element.name} {list(tensor.shape)}; "
            f"allowed: F32, up to {_MOST_FACTORS:,} values"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.start)
            data = file.read(tensor.stop - tensor.start)
    except OSError as error:
        raise CheckpointError(f"{printable(tensor.path)} cannot be read: {error.strerror or error}") from error
    if len(data) != tensor.stop - tensor.start:
        raise CheckpointError(f"{printable(tensor.path)} is truncated; download the file again")
    return struct.unpack(f"<{tensor.shape[0]}f", data)


def _named_factors(factors: Sequence[float], theta: float, head_dim: int, model: GgufModel) -> dict[str, Any] | None:
    """The scaling by whose rule one divides each frequency by these factors; None if they change nothing."""
    if all(factor == 1 for factor in factors):
        return None
    factor = shortest(max(factors))
    expected = _llama3_factors(factor, theta, len(factors)) if math.isfinite(factor) and theta > 0 else []
    close = [math.isclose(a, b, rel_tol=1e-3) for a, b in zip(factors, expected, strict=False)]
    if 2 * len(factors) != head_dim or len(close) != len(factors) or not all(close):
        raise CheckpointError(
            f"{printable(model.path)}: rope_freqs.weight holds frequencies that are not those of Llama 3.1 to 3.3; "
            "genx computes no others; get the model as a Hugging Face folder"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_factors(factor: float, theta: float, count: int) -> Sequence[float]:
    """By what Llama 3.1's rule (arXiv:2407.21783) divides the frequency of each of `count` channel pairs."""
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    context = _LLAMA3["original_max_position_embeddings"]
    turns = [context * theta ** (-pair / count) / (2 * math.pi) for pair in range(count)]
    kept = [min(max((turn - low) / (high - low), 0.0), 1.0) for turn in turns]
    return [1 / (keep + (1 - keep) / factor) for keep in kept]
