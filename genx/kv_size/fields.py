"""The sizes of a configuration, each with the place it was taken from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genx.errors import UsageError
from genx.kv_size.model_types import known
from genx.sampling_args import is_whole_number

# Other names under which published files carry a field, in the order in which vLLM's configuration reader asks for
# them (vllm/transformers_utils/model_arch_config_convertor.py), then the short keys of genx/config.py.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_q_heads", "num_query_heads"),
    "num_key_value_heads": (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed", "embed_dim", "model_dim"),
    "head_dim": ("head_dim", "head_size", "kv_channels", "d_kv", "attention_head_dim"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
        "model_max_length",
        "max_target_positions",
    ),
    "sliding_window": ("sliding_window", "window_size", "sliding_window_size", "attention_window_size"),
    "layer_types": ("layer_types", "layers_block_type"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "dtype": ("dtype", "torch_dtype"),
}

# Far above every published model; what lies beyond is a broken or hostile file.
_LARGEST: Mapping[str, int] = {
    "num_hidden_layers": 4096,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 16,
    "hidden_size": 1 << 20,
}
_LARGEST_OTHER = 1 << 40

# The flags that supply a field; every other field has `--set NAME=VALUE`.
FLAGS: Mapping[str, str] = {
    "num_hidden_layers": "--layers",
    "num_attention_heads": "--heads",
    "num_key_value_heads": "--kv-heads",
    "head_dim": "--head-dim",
    "v_head_dim": "--value-dim",
    "hidden_size": "--hidden-size",
    "sliding_window": "--window",
    "sliding_window_pattern": "--full-every",
    "layer_types": "--layer-types",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_rope_head_dim": "--rope-head-dim",
    "max_position_embeddings": "--max-positions",
    "state_bytes": "--state-bytes",
}
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")


@dataclass(frozen=True)
class Field:
    """A value that a size was worked out with, and where it came from: `explicit`, `from n_layer`, ..."""

    value: Any
    origin: str


class Fields:
    """Looks fields up: a flag first, then the file under any of its names, then what the model type assumes.

    `used` remembers every field that was asked for and found, in that order. A null value counts as absent, except
    where `explicit_null` asks.
    """

    def __init__(self, config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            config: the mapping as it stands in config.json; a text model inside it is looked for.
            overrides: values given by flags, under the fields' names in `ALIASES` or any other name; null takes a
                field away.
        """
        current, path = descend(config)
        given_null = {name: None for name, value in (overrides or {}).items() if value is None}
        self._config = {**current, **given_null}
        self._nested = bool(path)
        self._here = f"explicit, in {path}" if path else "explicit"
        self.overrides = {name: value for name, value in (overrides or {}).items() if value is not None}
        self.used: dict[str, Field] = {}
        self._noted: set[str] = set()
        given = self.overrides.get("model_type") or self._config.get("model_type") or config.get("model_type")
        self.model_type = given if isinstance(given, str) else None
        self.known = known(self.model_type)
        self._top = config

    def find(self, name: str) -> Field | None:
        """The field of that name, None if nobody gives it.

        Raises:
            UsageError: two of its names disagree.
        """
        field = self._find(name)
        if field is not None and name not in self._noted:
            self.used[name] = field
        return field

    def count(self, name: str, smallest: int = 1) -> int | None:
        """A whole number of at least `smallest`, None if nobody gives it.

        Raises:
            UsageError: it is something else, or larger than any model has.
        """
        field = self.find(name)
        return None if field is None else check_count(name, field.value, smallest)

    def require(self, name: str, why: str = "") -> int:
        """A whole number that there is no way around.

        Raises:
            UsageError: nobody gives it; the message names the field and the flag that supplies it.
        """
        value = self.count(name)
        if value is None:
            raise self.missing(name, why)
        return value

    def truth(self, name: str) -> bool | None:
        """A true or false."""
        field = self.find(name)
        if field is not None and not isinstance(field.value, bool):
            raise UsageError(f"{name} is {_short(field.value)}; allowed: true or false")
        return None if field is None else bool(field.value)

    def names(self, name: str) -> list[str] | None:
        """A list of names."""
        field = self.find(name)
        if field is None:
            return None
        if not isinstance(field.value, list | tuple) or not all(isinstance(item, str) for item in field.value):
            raise UsageError(f"{name} is {_short(field.value)}; allowed: a list of names")
        return list(field.value)

    def counts(self, name: str, length: int, smallest: int = 0) -> list[int] | None:
        """A list of `length` whole numbers, None if nobody gives it or it is one number."""
        field = self.find(name)
        if field is None or not isinstance(field.value, list | tuple):
            return None
        if len(field.value) != length:
            raise UsageError(f"{name} has {len(field.value)} entries; allowed: one a layer, {length}")
        return [check_count(f"{name}[{index}]", value, smallest) for index, value in enumerate(field.value)]

    def part(self, name: str) -> Mapping[str, Any] | None:
        """An object inside the configuration."""
        value = self._config.get(name)
        return value if isinstance(value, Mapping) else None

    def explicit_null(self, name: str) -> bool:
        """Whether the file names the field and says null."""
        return name not in self.overrides and any(
            key in self._config and self._config[key] is None for key in ALIASES.get(name, (name,))
        )

    def note(self, name: str, value: Any, origin: str) -> None:
        """Record a value that was worked out from others, or what became of it."""
        self.used[name] = Field(value, origin)
        self._noted.add(name)

    def missing(self, name: str, why: str = "") -> UsageError:
        """The error that asks for a field."""
        flag = FLAGS.get(name)
        how = f"give it with {flag}" if flag else f"give it with --set {name}=VALUE"
        reason = f", which {why}" if why else ""
        return UsageError(f"the configuration has no {name}{reason}; {how}")

    def _find(self, name: str) -> Field | None:
        keys = ALIASES.get(name, (name,))
        for key in (name, *keys):
            if key in self.overrides:
                return Field(self.overrides[key], FLAGS.get(name, f"--set {key}"))
        found = {key: self._config[key] for key in keys if self._config.get(key) is not None}
        if name == "dtype" and not found:
            found = {key: self._top[key] for key in keys if self._top.get(key) is not None}
        if found:
            first = next(iter(found))
            self._check_agreement(name, found)
            return Field(found[first], self._here if first == name else f"{self._here}, as {first}")
        return self._assumed(name)

    def _assumed(self, name: str) -> Field | None:
        if self.known is None or self.explicit_null(name):
            return None
        if name in self.known.defaults:
            return Field(self.known.defaults[name], f"from {self.model_type} defaults")
        if self._nested and name in self.known.nested_defaults:
            return Field(self.known.nested_defaults[name], f"from {self.model_type} defaults")
        return None

    def _check_agreement(self, name: str, found: Mapping[str, Any]) -> None:
        if name in ("max_position_embeddings", "dtype") or len({repr(value) for value in found.values()}) == 1:
            return  # several limits on one file are usual, and the bytes do not depend on them
        both = " and ".join(f"{key} is {_short(value)}" for key, value in found.items())
        flag = FLAGS.get(name, f"--set {name}=VALUE")
        raise UsageError(f"{both}, two names of one thing; say which with {flag}")


def descend(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The configuration of the text model inside a multimodal one, and the path to it (empty: it is the top)."""
    path: list[str] = []
    current = config
    while True:
        name = next((name for name in _NESTED if isinstance(current.get(name), Mapping)), None)
        if name is None or len(path) == 4:
            return current, ".".join(path)
        path.append(name)
        current = current[name]


def check_count(name: str, value: Any, smallest: int = 1) -> int:
    """`value` as a whole number of a size that a model can have.

    Raises:
        UsageError: it is none.
    """
    largest = _LARGEST.get(name.partition("[")[0], _LARGEST_OTHER)
    if not is_whole_number(value) or not smallest <= value <= largest:
        raise UsageError(f"{name} is {_short(value)}; allowed: a whole number from {smallest} to {largest:,}")
    return int(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
