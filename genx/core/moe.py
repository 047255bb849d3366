"""A sparse mixture of experts (Jiang et al. 2024, arXiv:2401.04088, section 2.1).

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.division import Division, Summed, two_layers
from genx.core.feed_forward import activation
from genx.errors import ConfigError


class Expert(nn.Module):
    """One gated feed-forward block, under the names that Mixtral's files use: w1 gate, w3 up, w2 down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.activation = activation(config.hidden_act)

    @property
    def division(self) -> Division:
        """Between inner channels."""
        return two_layers(("w1", "w3"), "w2", self.w2.in_features)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens` [N, C] to [N, C]."""
        out: Tensor = self.w2(self.activation(self.w1(tokens)) * self.w3(tokens))  # inner: [N, I]
        return out


class SparseMoe(nn.Module):
    """Each token passes through the K experts that its router scores highest; no other expert is computed."""

    host_decides = "which experts to compute is decided on the host"

    def __init__(self, config: ModelConfig, experts: Sequence[nn.Module], *, normalize: bool = True) -> None:
        """
        Args:
            config: sizes.
            experts: E blocks, each from [N, C] to [N, C].
            normalize: whether the weights of a token's K experts are made to sum to 1.

        Raises:
            ConfigError: (a ValueError) a token chooses no expert.
        """
        super().__init__()
        if config.num_experts_per_tok < 1:
            raise ConfigError("num_experts_per_tok is 0; allowed: at least 1")
        self.experts_per_token = config.num_experts_per_tok
        self.normalize = normalize
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = nn.ModuleList(experts)

    @property
    def division(self) -> Division:
        """Every process has a part of each expert; what they give is summed once."""
        return {"": Summed()}

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        tokens = hidden.flatten(0, 1)  # [B * T, C]
        scores = torch.softmax(self.gate(tokens).float(), dim=-1)  # [B * T, E]
        weights, chosen = scores.topk(self.experts_per_token, dim=-1)  # [B * T, K] each
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(hidden.dtype)
        mixed = mix_experts(tokens, chosen, weights, lambda expert, routed: self.experts[expert](routed))
        return mixed.view_as(hidden)


def mix_experts(tokens: Tensor, chosen: Tensor, weights: Tensor, compute: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Each token's weighted sum over its experts; an expert that no token has chosen is not computed.

    Args:
        tokens: [B * T, C].
        chosen: [B * T, K], experts' numbers.
        weights: [B * T, K].
        compute: an expert's number and the tokens [N, C] routed to it, to [N, C].

    Returns:
        [B * T, C].
    """
    mixed = torch.zeros_like(tokens)
    for expert in sorted(set(chosen.flatten().tolist())):
        token, place = (chosen == expert).nonzero(as_tuple=True)  # [N] each
        output = compute(expert, tokens[token])  # [N, C]
        mixed.index_add_(0, token, output * weights[token, place].unsqueeze(-1))
    return mixed


def split_experts(tensors: dict[str, Tensor], gate_and_up: tuple[str, str], down: str) -> dict[str, Tensor]:
    """Stacked experts as views of one expert each; other tensors as they are.

    Args:
        tensors: those called `....gate_up_proj` [E, 2I, C] and `....down_proj` [E, C, I] are split.
        gate_and_up: what follows an expert's number in the names of its gate and of its input projection.
        down: what follows it in the name of its output projection.
    """
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block, _, part = name.rpartition(".")
        if part not in ("gate_up_proj", "down_proj") or tensor.dim() != 3:
            split[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            if part == "down_proj":
                split[f"{block}.{expert}.{down}"] = matrix
            else:
                split.update(zip((f"{block}.{expert}.{own}" for own in gate_and_up), matrix.chunk(2), strict=True))
    return split
