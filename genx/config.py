"""Model configurations: sizes read from a Hugging Face config.json or from short keys, checked before use.

Config says how big a model is; the model's own file says what it does. Nothing here imports torch.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genx.config_fields import ExtraFields, number, probability, shown, text, truth
from genx.errors import ConfigError
from genx.messages import printable
from genx.sampling_args import is_whole_number

# The short keys of hand-written configurations, and what Hugging Face calls the same thing.
SHORT_KEYS: Mapping[str, str] = {
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_q_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "num_layers": "num_hidden_layers",
    "window_size": "sliding_window",
    "num_experts": "num_local_experts",
    "top_k_experts": "num_experts_per_tok",
}

# Far above every published model; what lies beyond is a broken or hostile file, refused before it costs memory.
_LARGEST: Mapping[str, int] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 24,
    "num_hidden_layers": 4096,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 16,
    "max_position_embeddings": 1 << 31,
    "sliding_window": 1 << 31,
    "num_local_experts": 1 << 16,
    "num_experts_per_tok": 1 << 16,
}
_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions as `rope_theta` and `rope_scaling` (or the newer `rope_parameters`) describe them."""

    theta: float = 10_000.0
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    partial: float = 1.0
    """The share of a head's channels that rotate, from the first on."""

    @classmethod
    def from_dict(cls, source: Mapping[str, Any], theta: float, partial: float = 1.0) -> "RopeConfig":
        """Read `rope_scaling` or `rope_parameters`; a null value counts as absent.

        Args:
            source: the fields, `rope_type` under its older name too.
            theta: where they do not say.
            partial: where they do not say.

        Raises:
            ConfigError: a field is not of its kind.
        """
        fields = {name: value for name, value in source.items() if value is not None}
        old_kind = fields.pop("type", "default")
        kind = text({"rope_type": fields.pop("rope_type", old_kind)}, "rope_type", "default")
        theta = number({"rope_theta": fields.pop("rope_theta", theta)}, "rope_theta", theta)
        if theta <= 0:
            raise ConfigError(f"rope_theta is {theta!r}; allowed: a finite number above 0")
        share = fields.pop("partial_rotary_factor", partial)
        share = number({"partial_rotary_factor": share}, "partial_rotary_factor", 1.0)
        if not 0 < share <= 1:
            raise ConfigError(f"partial_rotary_factor is {share!r}; allowed: above 0 and at most 1")
        return cls(theta=theta, kind=kind, scaling=fields, partial=share)

    def to_dict(self) -> dict[str, Any]:
        """The fields of `rope_parameters`."""
        return {
            "rope_type": self.kind,
            "rope_theta": self.theta,
            "partial_rotary_factor": self.partial,
            **self.scaling,
        }


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of one decoder-only model, under Hugging Face's names.

    `extra` keeps every key of the source that has no field here, for the model files that know it.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str
    norm_eps: float
    tie_word_embeddings: bool
    rope: RopeConfig
    sliding_window: int | None = None
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    initializer_range: float = 0.02
    dtype: str | None = None
    extra: ExtraFields = field(default_factory=ExtraFields)

    @classmethod
    def from_dict(
        cls,
        source: Mapping[str, Any],
        *,
        model_type: str,
        aliases: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> "ModelConfig":
        """Read a configuration, tolerant of extra keys and of none that is missing or contradictory.

        Args:
            source: the mapping as it stands in config.json, or with the short keys (`embed_dim`, `num_heads`, ...).
                A null value counts as absent.
            model_type: the architecture that reads it.
            aliases: that architecture's own names for the fields, such as `n_embd`.
            defaults: what that architecture assumes where the source is silent.

        Raises:
            ConfigError: a field is missing, contradictory, not of its kind, or of a size that no model has.
        """
        names = {**SHORT_KEYS, **_FIELD_NAMES, **(aliases or {})}
        values = _rename(names, source)
        values = {**(defaults or {}), **values}
        for name, value in values.items():
            if name in _LARGEST and (name != "sliding_window" or value != -1):
                _check_size(name, value)
        heads = _required(values, "num_attention_heads")
        hidden = _required(values, "hidden_size")
        head_dim = values.get("head_dim") or _split(hidden, heads)
        kv_heads = values.get("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigError(
                f"num_attention_heads is {heads} and num_key_value_heads {kv_heads}; "
                "allowed: key/value heads that divide the attention heads"
            )
        dropout = values.get("dropout", 0.0)
        known = {f.name for f in dataclasses.fields(cls)} | {"rope_theta", "rope_scaling", "rope_parameters"}
        known |= {"partial_rotary_factor", "dropout"}
        nulls = {
            name: None for name, value in source.items() if value is None and name not in {*values, *names, *known}
        }
        config = cls(
            model_type=model_type,
            vocab_size=_required(values, "vocab_size"),
            hidden_size=hidden,
            num_hidden_layers=_required(values, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=values.get("intermediate_size", 4 * hidden),
            max_position_embeddings=_required(values, "max_position_embeddings"),
            hidden_act=text(values, "hidden_act", "silu"),
            norm_eps=number(values, "norm_eps", 1e-6),
            tie_word_embeddings=truth(values, "tie_word_embeddings", False),
            rope=_read_rope(values),
            sliding_window=_window(values.get("sliding_window")),
            num_local_experts=values.get("num_local_experts", 0),
            num_experts_per_tok=values.get("num_experts_per_tok", 0),
            embd_pdrop=probability(values, "embd_pdrop", dropout),
            attn_pdrop=probability(values, "attn_pdrop", dropout),
            resid_pdrop=probability(values, "resid_pdrop", dropout),
            initializer_range=number(values, "initializer_range", 0.02),
            dtype=_dtype_name(values.get("dtype")),
            extra=ExtraFields({**nulls, **{name: value for name, value in values.items() if name not in known}}),
        )
        if config.num_experts_per_tok > config.num_local_experts:
            raise ConfigError(
                f"num_experts_per_tok is {config.num_experts_per_tok}; "
                f"allowed: at most num_local_experts, which is {config.num_local_experts}"
            )
        return config

    def to_dict(self, names: Mapping[str, str], *, rotary: bool) -> dict[str, Any]:
        """The configuration as config.json holds it.

        Args:
            names: the architecture's own name of a field, where it has one.
            rotary: whether the architecture has rotary positions, and with them free head sizes and windows.
        """
        fields = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
        fields += ["max_position_embeddings", "hidden_act", "norm_eps", "attn_pdrop", "initializer_range"]
        fields += ["num_key_value_heads", "head_dim", "sliding_window"] if rotary else ["embd_pdrop", "resid_pdrop"]
        if self.num_local_experts:
            fields += ["num_local_experts", "num_experts_per_tok"]
        # Where these are absent, other software takes ids of the family's published models.
        written: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        written.update(self.extra, model_type=self.model_type)
        written.pop("quantization_config", None)  # of the file that was read; models in memory are floats
        written.update({names.get(name, name): getattr(self, name) for name in fields})
        if rotary:
            written[names.get("rope_theta", "rope_theta")] = self.rope.theta
            if self.rope.partial != 1 or "partial_rotary_factor" in names:
                written[names.get("partial_rotary_factor", "partial_rotary_factor")] = self.rope.partial
            # The newer spelling always, since where it is absent other software takes the family's own scaling.
            written["rope_parameters"] = self.rope.to_dict()
            if self.rope.kind != "default":
                written["rope_scaling"] = {"rope_type": self.rope.kind, **self.rope.scaling}
        return written


# Other names under which published files carry a field.
_FIELD_NAMES: Mapping[str, str] = {
    "torch_dtype": "dtype",
    "rms_norm_eps": "norm_eps",
    "layer_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    "norm_epsilon": "norm_eps",
    "attention_dropout": "attn_pdrop",
}


def read_json(path: Path, what: str) -> Any:
    """A JSON file of bounded size, a leading byte-order mark allowed.

    Raises:
        ConfigError: it is missing, too large, not UTF-8 or not JSON; the message names `what` and the path.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise ConfigError(f"{what} {printable(path)} has {size:,} bytes; allowed: at most {_MAX_JSON_BYTES:,}")
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{what} {printable(path)} cannot be read: {error.strerror or printable(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {printable(path)} is not UTF-8: byte {error.start}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} {printable(path)} is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"{what} {printable(path)} is not JSON: {printable(error)}") from error


def _rename(names: Mapping[str, str], source: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, value in source.items():
        if value is None:
            continue
        name = names.get(key, key)
        if name in values and values[name] != value:
            raise ConfigError(
                f"{origin[name]} is {values[name]!r} and {key} is {value!r}, two names of one thing; keep one"
            )
        values[name] = value
        origin[name] = key
    return values


def _required(values: Mapping[str, Any], name: str) -> int:
    if name not in values:
        short = [key for key, hf_name in SHORT_KEYS.items() if hf_name == name]
        also = f" (or {' or '.join(short)})" if short else ""
        raise ConfigError(f"the configuration has no {name}{also}; add it")
    return int(values[name])


def _check_size(name: str, value: object) -> None:
    smallest = 0 if name in ("num_local_experts", "num_experts_per_tok", "sliding_window") else 1
    if not is_whole_number(value) or not smallest <= int(value) <= _LARGEST[name]:  # type: ignore[call-overload]
        raise ConfigError(f"{name} is {shown(value)}; allowed: a whole number from {smallest} to {_LARGEST[name]:,}")


def _split(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ConfigError(
            f"hidden_size {hidden} does not divide into {heads} attention heads; give head_dim, or sizes that divide"
        )
    return hidden // heads


def _window(value: int | None) -> int | None:
    return None if value in (None, 0, -1) else value  # all three mean "no window" in published files


def _dtype_name(value: object) -> str | None:
    return value.removeprefix("torch.") if isinstance(value, str) else None


def _read_rope(values: Mapping[str, Any]) -> RopeConfig:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters` that holds the theta too."""
    scaling: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = values.get(key, {})
        if not isinstance(part, Mapping):
            raise ConfigError(f"{key} is {shown(part)}; allowed: an object")
        scaling.update(part)
    theta = values.get("rope_theta", 10_000.0)
    return RopeConfig.from_dict(scaling, theta, values.get("partial_rotary_factor", 1.0))
