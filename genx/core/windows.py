"""Which layers of a model slide, where not all are alike."""

from collections.abc import Callable

from genx.config import ModelConfig
from genx.config_fields import shown
from genx.errors import ConfigError
from genx.messages import printable

_SLIDES = {"sliding_attention": True, "full_attention": False}


def windows_by_layer(config: ModelConfig, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """For each layer the window it slides with, None if it attends to everything.

    Args:
        config: its `layer_types` decides if there is one.
        slides: the architecture's own rule where there is none; from a layer's number, counted from 0.

    Raises:
        ConfigError: (a ValueError) `layer_types` has another length, or a kind that genx does not compute.
    """
    count = config.num_hidden_layers
    kinds = config.extra.get("layer_types")
    if kinds is None:
        return tuple(config.sliding_window if slides(layer) else None for layer in range(count))
    if not isinstance(kinds, list) or len(kinds) != count or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError(f"layer_types is {shown(kinds)}; allowed: a list of {count} names, one a layer")
    unknown = sorted(set(kinds) - set(_SLIDES))
    if unknown:
        raise ConfigError(f"layer_types has {printable(', '.join(unknown))}; allowed: {', '.join(_SLIDES)}")
    return tuple(config.sliding_window if _SLIDES[kind] else None for kind in kinds)


def windows_from_a_layer_on(config: ModelConfig) -> tuple[int | None, ...]:
    """Windows where `use_sliding_window` asks for them, in the layers from `max_window_layers` on.

    Raises:
        ConfigError: (a ValueError) a field is not of its kind.
    """
    if not config.extra.flag("use_sliding_window", False):
        return (None,) * config.num_hidden_layers
    first = config.extra.whole("max_window_layers", 28)
    return windows_by_layer(config, lambda layer: layer >= first)
