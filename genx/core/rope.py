"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its published scalings.

Channel i of a head is paired with channel i + D/2, as Hugging Face's files have it. Angles are computed in float32
from integer positions and cast last, so that no model dtype can merge neighbouring positions.
Shapes: see the legend in genx/core/base_model.py.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.errors import ConfigError, GenxWarning


class RotaryEmbedding(nn.Module):
    """Cosines and sines of each position's angles. Holds no parameters and no buffers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies, self.amplitude = _frequencies(config)
        self._frequencies = {torch.device("cpu"): frequencies}

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [B or 1, 1, T, R] in `dtype`, for positions [B or 1, T]; R channels rotate."""
        device = positions.device
        if device not in self._frequencies:
            self._frequencies[device] = self._frequencies[torch.device("cpu")].to(device)
        angles = positions.unsqueeze(-1).float() * self._frequencies[device]  # [B or 1, T, R/2]
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)  # [B or 1, 1, T, R]
        return (angles.cos() * self.amplitude).to(dtype), (angles.sin() * self.amplitude).to(dtype)


def apply_rotary(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `heads` [B, H, T, D] by the angles of their positions, [B or 1, 1, T, R]; channels from R on stay."""
    if cosine.size(-1) < heads.size(-1):
        rotated, rest = heads.tensor_split((cosine.size(-1),), dim=-1)  # [B, H, T, R], [B, H, T, D - R]
        return torch.cat((apply_rotary(rotated, cosine, sine), rest), dim=-1)
    first, second = heads.chunk(2, dim=-1)  # [B, H, T, D/2] each
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Angle per position of each channel pair, float32 [R/2], and the factor on cosines and sines."""
    rope = config.rope
    channels = _rotary_channels(config)
    if channels % 2 or not channels:
        raise ConfigError(f"{channels} of the head's {config.head_dim} channels rotate; allowed: an even number")
    if rope.kind not in _SCALINGS:
        raise ConfigError(f"rope_type is {rope.kind!r}; allowed: {', '.join(sorted(_SCALINGS))}")
    scaling, known = _SCALINGS[rope.kind]
    unknown = sorted(set(rope.scaling) - known - _HARMLESS)
    if unknown:
        warnings.warn(f"rope_scaling of type {rope.kind} does not know {', '.join(unknown)}", GenxWarning, stacklevel=2)
    # Named device: the model may be under construction on the meta device, and these numbers are not in any file.
    exponents = torch.arange(0, channels, 2, dtype=torch.float32, device="cpu") / channels
    return scaling(1.0 / rope.theta**exponents, config)


def _rotary_channels(config: ModelConfig) -> int:
    return int(config.head_dim * config.rope.partial)


def _unscaled(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """No scaling; also the dynamic kind, which changes nothing within max_position_embeddings."""
    del config
    return frequencies, 1.0


def _linear(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""
    return frequencies / _field(config.rope.scaling, "factor"), 1.0


def _llama3(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """Llama 3.1: slow channels are stretched, fast ones kept, those between blended (arXiv:2407.21783)."""
    scaling = config.rope.scaling
    factor = _field(scaling, "factor")
    original = _field(scaling, "original_max_position_embeddings")
    low, high = _field(scaling, "low_freq_factor"), _field(scaling, "high_freq_factor")
    if low >= high:
        raise ConfigError(f"low_freq_factor is {low} and high_freq_factor {high}; allowed: low below high")
    turns = original * frequencies / (2 * math.pi)  # full turns within the original context, [R/2]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / factor), 1.0


def _yarn(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4)."""
    scaling = config.rope.scaling
    original = _field(scaling, "original_max_position_embeddings", config.max_position_embeddings)
    factor = _field(scaling, "factor", config.max_position_embeddings / original)
    slow = _channel_of(_field(scaling, "beta_fast", 32.0), original, config)
    fast = _channel_of(_field(scaling, "beta_slow", 1.0), original, config)
    if scaling.get("truncate", True):
        slow, fast = math.floor(slow), math.ceil(fast)
    slow, fast = max(slow, 0), min(fast, _rotary_channels(config) - 1)
    channel = torch.arange(len(frequencies), dtype=torch.float32, device="cpu")
    stretch = ((channel - slow) / max(fast - slow, 0.001)).clamp(0, 1)
    return frequencies * (1 - stretch + stretch / factor), _yarn_amplitude(scaling, factor)


def _yarn_amplitude(scaling: Mapping[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return _field(scaling, "attention_factor")

    def amplitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return amplitude(_field(scaling, "mscale")) / amplitude(_field(scaling, "mscale_all_dim"))
    return amplitude(1.0)


def _channel_of(turns: float, original: float, config: ModelConfig) -> float:
    """The channel pair, as a real number, that makes `turns` full turns within the original context."""
    return _rotary_channels(config) * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope.theta))


def _field(scaling: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = scaling.get(name)
    value = default if value is None else value
    if value is None:
        raise ConfigError(f"rope_scaling has no {name}; add it")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} in rope_scaling is {value!r}; allowed: a finite number above 0")
    return float(value)


_Scaling = Callable[[Tensor, ModelConfig], tuple[Tensor, float]]
_YARN_FIELDS = {
    "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "truncate",
}  # fmt: skip
_SCALINGS: Mapping[str, tuple[_Scaling, set[str]]] = {
    "default": (_unscaled, set()),
    "dynamic": (_unscaled, {"factor", "original_max_position_embeddings"}),
    "linear": (_linear, {"factor"}),
    "llama3": (_llama3, {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
    "yarn": (_yarn, _YARN_FIELDS),
}
# Written by other software beside any kind, with the value that changes nothing.
_HARMLESS = {"attention_factor", "finetuned", "original_max_position_embeddings"}
