"""A sparse mixture of experts (Jiang et al. 2024, arXiv:2401.04088, section 2.1).

Shapes: see the legend in genx/core/base_model.py.
"""

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.feed_forward import activation


class Expert(nn.Module):
    """One gated feed-forward block, under the names that Mixtral's files use: w1 gate, w3 up, w2 down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.activation = activation(config.hidden_act)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens` [N, C] to [N, C]."""
        out: Tensor = self.w2(self.activation(self.w1(tokens)) * self.w3(tokens))  # inner: [N, I]
        return out


class SparseMoe(nn.Module):
    """Each token passes through the K experts that its router scores highest; no other expert is computed."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.experts_per_token = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_local_experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        tokens = hidden.flatten(0, 1)  # [B * T, C]
        scores = torch.softmax(self.gate(tokens).float(), dim=-1)  # [B * T, E]
        weights, chosen = scores.topk(self.experts_per_token, dim=-1)  # [B * T, K] each
        weights = (weights / weights.sum(-1, keepdim=True)).to(hidden.dtype)
        mixed = torch.zeros_like(tokens)
        for expert in sorted(set(chosen.flatten().tolist())):
            token, place = (chosen == expert).nonzero(as_tuple=True)  # [N] each
            output = self.experts[expert](tokens[token])  # [N, C]
            mixed.index_add_(0, token, output * weights[token, place].unsqueeze(-1))
        return mixed.view_as(hidden)
