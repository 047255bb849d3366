"""Blocks by hand computation: norms, rotation, experts, windows."""

import pytest
import torch

from genx.config import ModelConfig
from genx.core.moe import Expert, SparseMoe
from genx.core.norm import RMSNorm, UnitOffsetRMSNorm
from genx.core.positions import Positions
from genx.core.rope import RotaryEmbedding, apply_rotary
from genx.errors import ConfigError, GenxWarning
from genx.models.gemma import Gemma
from genx.models.gpt2 import GPT2
from genx.models.llama import Llama
from genx.models.mixtral import Mixtral

SIZES = {"vocab_size": 30, "embed_dim": 16, "num_heads": 4, "num_layers": 1, "max_position_embeddings": 600}


def config(**changes: object) -> ModelConfig:
    return Llama.read_config({**SIZES, **changes})


class TestNorm:
    def test_the_input_is_not_changed(self) -> None:
        """GeeeekExplorer/nano-vllm#170: in float32 the residual was overwritten."""
        x = torch.randn(2, 3, 8)
        before = x.clone()
        for norm in (RMSNorm(8, 1e-6), UnitOffsetRMSNorm(8, 1e-6)):
            norm(x)
        assert torch.equal(x, before)

    def test_values(self) -> None:
        x = torch.tensor([3.0, 4.0])
        norm = RMSNorm(2, 0.0)
        norm.weight.data = torch.tensor([2.0, -1.0])
        assert norm(x).tolist() == pytest.approx([6 / 12.5**0.5, -4 / 12.5**0.5])

    def test_offset_of_zero_is_identity(self) -> None:
        """linkedin/Liger-Kernel#74: the weight was used without the added 1."""
        x = torch.tensor([3.0, 4.0])
        assert UnitOffsetRMSNorm(2, 0.0)(x).tolist() == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5])

    def test_offset_is_summed_in_float32(self) -> None:
        """vllm-project/vllm PR #29810: 1 + w in bfloat16 makes 16.75 of 16.8125."""
        norm = UnitOffsetRMSNorm(1, 0.0).bfloat16()
        norm.weight.data.fill_(15.8125)
        assert norm(torch.tensor([[2.0]], dtype=torch.bfloat16)).item() == torch.tensor(16.8125).bfloat16().item()


class TestGemma:
    def test_embedding_scale_is_rounded_to_the_dtype(self) -> None:
        """huggingface/transformers PR #29402: 55.5 for 3072 in bfloat16."""
        model = Gemma({**SIZES, "embed_dim": 3072, "head_size": 4, "intermediate_size": 2}).bfloat16().eval()
        seen: list[torch.Tensor] = []
        model.model.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
        x = torch.tensor([[3]])
        model(x)
        assert torch.equal(seen[0], model.model.embed_tokens(x) * torch.tensor(55.5, dtype=torch.bfloat16))

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"hidden_act": "gelu"}, "gelu_pytorch_tanh"),
            ({"hidden_act": "gelu_pytorch_tanh"}, "gelu_pytorch_tanh"),
            ({}, "gelu_pytorch_tanh"),
            ({"hidden_act": "gelu", "hidden_activation": None}, "gelu_pytorch_tanh"),
            ({"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu"}, "gelu"),
        ],
    )
    def test_gelu_means_the_tanh_form(self, fields: dict[str, str | None], expected: str) -> None:
        """NVIDIA-NeMo/Megatron-Bridge PR #4661."""
        assert Gemma({**SIZES, **fields})._gate_activation() == expected


class TestRope:
    def test_neighbouring_positions_differ_in_bfloat16(self) -> None:
        """huggingface/transformers PR #29285: 256 and 257 became equal."""
        rotary = Llama(SIZES).bfloat16().model.rotary
        cosine, sine = rotary(torch.tensor([[256, 257]]), torch.bfloat16)
        assert not torch.equal(cosine[..., 0, :], cosine[..., 1, :])
        assert not torch.equal(sine[..., 0, :], sine[..., 1, :])

    def test_first_half_is_paired_with_second_half(self) -> None:
        """huggingface/transformers#31766: files are in half-split order already."""
        rotary = RotaryEmbedding(config(head_size=4))
        cosine, sine = rotary(torch.tensor([[5]]), torch.float32)
        angle = [5.0, 5.0 * 10_000**-0.5]
        head = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
        c, s = [torch.tensor(angle).cos(), torch.tensor(angle).sin()]
        first, second = head[..., :2], head[..., 2:]
        expected = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
        torch.testing.assert_close(apply_rotary(head, cosine, sine), expected)

    def test_an_explicit_yarn_factor_counts(self) -> None:
        """huggingface/transformers#38224: it was recomputed from the lengths."""
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 300}
        found = RotaryEmbedding(config(rope_scaling=scaling))
        implied = RotaryEmbedding(config(rope_scaling={**scaling, "factor": 2.0}))
        absent = RotaryEmbedding(config(rope_scaling={**scaling, "factor": None}))
        at = torch.tensor([[7]])
        assert not torch.equal(found(at, torch.float32)[0], implied(at, torch.float32)[0])
        assert torch.equal(absent(at, torch.float32)[0], implied(at, torch.float32)[0])

    def test_a_yarn_amplitude_in_the_config_counts(self) -> None:
        """ml-explore/mlx-lm PR #1507: 1.0 switches it off; it was always 0.1 ln f + 1."""
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 150}
        assert RotaryEmbedding(config(rope_scaling=scaling)).amplitude == pytest.approx(1.1386, abs=1e-4)
        assert RotaryEmbedding(config(rope_scaling={**scaling, "attention_factor": 1.0})).amplitude == 1.0

    def test_unknown_keys_warn_and_unknown_kinds_are_refused(self) -> None:
        """huggingface/transformers#32166 and #32167."""
        with pytest.warns(GenxWarning, match="does not know fudge"):
            Llama({**SIZES, "rope_scaling": {"type": "linear", "factor": 2.0, "fudge": 1}})
        with pytest.raises(ConfigError, match="'su'; allowed: default, dynamic, linear, llama3, longrope, yarn"):
            Llama({**SIZES, "rope_scaling": {"rope_type": "su"}})
        with pytest.raises(ConfigError, match="no factor"):
            Llama({**SIZES, "rope_scaling": {"rope_type": "linear"}})


class TestExperts:
    @pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (2, 2), (1, 1), (4, 1)])
    def test_by_hand(self, experts: int, chosen: int) -> None:
        """huggingface/transformers PR #27942 and ml-explore/mlx-examples PR #673."""
        torch.manual_seed(0)
        sizes = Mixtral.read_config({**SIZES, "num_experts": experts, "top_k_experts": chosen})
        block = SparseMoe(sizes, [Expert(sizes) for _ in range(experts)])
        x = torch.randn(1, 3, 16)
        expected = torch.zeros(3, 16)
        for row, token in enumerate(x[0]):
            scores = torch.softmax(block.gate(token), -1)
            best = scores.argsort(descending=True)[:chosen]
            for expert in best.tolist():
                expected[row] += scores[expert] / scores[best].sum() * block.experts[expert](token)
        torch.testing.assert_close(block(x)[0], expected)

    def test_only_chosen_experts_are_computed(self) -> None:
        sizes = Mixtral.read_config({**SIZES, "num_experts": 4, "top_k_experts": 1})
        block = SparseMoe(sizes, [Expert(sizes) for _ in range(4)])
        called: list[int] = []
        for number, expert in enumerate(block.experts):
            expert.register_forward_hook(lambda *_, number=number: called.append(number))
        block(torch.randn(1, 1, 16))
        assert len(called) == 1


class TestWindow:
    def test_a_query_sees_itself_and_w_minus_one_before(self) -> None:
        """huggingface/transformers PR #26792: the diagonal was off by one."""
        mask = Positions(1, 5, torch.device("cpu")).new_mask(3)
        assert mask is not None
        assert mask[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3]


class TestGPT2:
    @pytest.mark.parametrize(("inner", "expected"), [(None, 64), (24, 24)])
    def test_inner_size(self, inner: int | None, expected: int) -> None:
        """keras-team/keras-hub PR #1704: the width came from an unrelated field."""
        sizes = {"vocab_size": 30, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8, "n_inner": inner}
        assert GPT2(sizes).transformer["h"][0].mlp.c_fc.weight.shape == (16, expected)  # type: ignore[index]
