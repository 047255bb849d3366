"""Feed-forward blocks and their activations. Shapes: see the legend in genx/core/base_model.py."""

from collections.abc import Callable, Mapping
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.division import Division, two_layers
from genx.errors import ConfigError

Activation = Callable[[Tensor], Tensor]

_tanh_gelu: Activation = partial(F.gelu, approximate="tanh")

# GELU: Hendrycks and Gimpel 2016, arXiv:1606.08415; SiLU: Elfwing et al. 2017, arXiv:1702.03118.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


def activation(name: str) -> Activation:
    """The activation of that published name.

    Raises:
        ConfigError: genx does not know it.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"the activation is {name!r}; allowed: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


class GatedMLP(nn.Module):
    """A gated feed-forward block (Shazeer 2020, arXiv:2002.05202): down(activation(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, hidden_act: str, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.activation = activation(hidden_act)

    @property
    def division(self) -> Division:
        """Between inner channels."""
        return two_layers(("gate_proj", "up_proj"), "down_proj", self.down_proj.in_features)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        inner = self.activation(self.gate_proj(hidden)) * self.up_proj(hidden)  # [B, T, I]
        out: Tensor = self.down_proj(inner)
        return out


class MLP(nn.Module):
    """Two linear layers with an activation between, under the names that an architecture's files use."""

    def __init__(self, config: ModelConfig, names: tuple[str, str], bias: bool = True) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.Linear(config.hidden_size, config.intermediate_size, bias=bias))
        self.add_module(names[1], nn.Linear(config.intermediate_size, config.hidden_size, bias=bias))
        self.activation = activation(config.hidden_act)
        self.inner = config.intermediate_size

    @property
    def division(self) -> Division:
        """Between inner channels."""
        return two_layers(self.names[:1], self.names[1], self.inner)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        first, second = map(self.get_submodule, self.names)
        out: Tensor = second(self.activation(first(hidden)))  # inner: [B, T, I]
        return out
