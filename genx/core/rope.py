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
from genx.config_fields import is_finite_number, shown
from genx.errors import ConfigError, GenxWarning


class RotaryEmbedding(nn.Module):
    """Cosines and sines of each position's angles. Holds no parameters and no buffers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies, self.amplitude = _frequencies(config)
        self._frequencies = {torch.device("cpu"): frequencies}
        self._longest_short = longest_short_text(config)

    def forward(
        self, positions: Tensor, dtype: torch.dtype, text_lengths: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [B or 1, 1, T, R] in `dtype`; R channels rotate.

        Args:
            positions: [B or 1, T].
            dtype: of the result.
            text_lengths: tokens of each row's text [B], or of every row's; only LongRoPE goes by them.
        """
        device = positions.device
        if device not in self._frequencies:
            self._frequencies[device] = self._frequencies[torch.device("cpu")].to(device)
        frequencies = self._frequencies[device]  # [R/2], or [2, R/2] for short and long texts
        if self._longest_short is not None:
            assert text_lengths is not None
            is_long = torch.as_tensor(text_lengths, device=device) > self._longest_short  # [B] or no dimension
            frequencies = frequencies[is_long.long()]  # [B, R/2] or [R/2]
        if frequencies.dim() == 2:
            frequencies = frequencies.unsqueeze(1)  # [B, 1, R/2]
        angles = positions.unsqueeze(-1).float() * frequencies  # [B or 1, T, R/2]
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)  # [B or 1, 1, T, R]
        return (angles.cos() * self.amplitude).to(dtype), (angles.sin() * self.amplitude).to(dtype)


def apply_rotary(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `heads` [B, H, T, D] by the angles of their positions, [B or 1, 1, T, R]; channels from R on stay."""
    if cosine.size(-1) < heads.size(-1):
        rotated, rest = heads.tensor_split((cosine.size(-1),), dim=-1)  # [B, H, T, R], [B, H, T, D - R]
        return torch.cat((apply_rotary(rotated, cosine, sine), rest), dim=-1)
    first, second = heads.chunk(2, dim=-1)  # [B, H, T, D/2] each
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def longest_short_text(config: ModelConfig) -> int | None:
    """Tokens of the longest text that is read with LongRoPE's short factors; None where lengths do not matter.

    Longer texts have other angles at every position, so that what was read of a text while it was short does not
    serve any more (Ding et al. 2024, arXiv:2402.13753; transformers' Phi-3 reads the text again too).
    """
    if config.rope.kind != "longrope":
        return None
    return int(_original_length(config))


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Angle per position of each channel pair, float32 [R/2], and the factor on cosines and sines.

    LongRoPE has two such rows, [2, R/2].
    """
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
    return scaling(1.0 / rope.theta ** _exponents(channels), config)


def _exponents(channels: int) -> Tensor:
    """[R/2]. On a named device: the model may be under construction on the meta device, and no file has these."""
    return torch.arange(0, channels, 2, dtype=torch.float32, device="cpu") / channels


def _rotary_channels(config: ModelConfig) -> int:
    return int(config.head_dim * config.rope.partial)


def _unscaled(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """No scaling; also the dynamic kind, which changes nothing within max_position_embeddings."""
    del config
    return frequencies, 1.0


def _longrope(frequencies: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor of its own for each channel pair, other ones for texts
    that are longer than the model was first trained on."""
    scaling, pairs = config.rope.scaling, len(frequencies)
    original = _original_length(config)
    # Not `frequencies` over the factors: rounded once less, as in other software.
    periods = config.rope.theta ** _exponents(2 * pairs)
    both = [_pair_factors(scaling, name, pairs) for name in ("short_factor", "long_factor")]
    factor = _field(scaling, "factor", config.max_position_embeddings / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return 1.0 / (torch.stack(both) * periods), _field(scaling, "attention_factor", usual)


_LONGEST = 1 << 31


def _original_length(config: ModelConfig) -> float:
    original = _field(config.rope.scaling, "original_max_position_embeddings", config.max_position_embeddings)
    if not 2 <= original <= _LONGEST or original != int(original):
        raise ConfigError(
            f"original_max_position_embeddings in rope_scaling is {original}; allowed: a whole number from 2 to "
            f"{_LONGEST:,}"
        )
    return original


def _pair_factors(scaling: Mapping[str, Any], name: str, pairs: int) -> Tensor:
    """[R/2], float32."""
    factors = scaling.get(name)
    if not isinstance(factors, list) or len(factors) != pairs:
        given = f"{len(factors)} values" if isinstance(factors, list) else shown(factors)
        raise ConfigError(f"{name} in rope_scaling is {given}; allowed: a list of {pairs}, one for each channel pair")
    numbers = [_field({f"{name}[{place}]": factor}, f"{name}[{place}]") for place, factor in enumerate(factors)]
    return torch.tensor(numbers, dtype=torch.float32, device="cpu")


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
    if not is_finite_number(value) or value <= 0:
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
    "longrope": (_longrope, {"short_factor", "long_factor", "factor"}),
    "llama3": (_llama3, {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
    "yarn": (_yarn, _YARN_FIELDS),
}
# Written by other software beside any kind, with the value that changes nothing.
_HARMLESS = {"attention_factor", "finetuned", "original_max_position_embeddings"}
