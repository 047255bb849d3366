"""Fields that only some architectures have: read by kind, defaults as transformers', written so that they stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from genx.errors import ConfigError
from genx.models.registry import model_class
from tests.architectures import CONTEXT, REMOVED, assert_near, make_tiny, prompt
from tests.models.test_parity import peer_logits

SIZES = {
    "vocab_size": 30,
    "hidden_size": 20,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        ("gemma2", "final_logit_softcapping", "relu"),
        ("gemma2", "attn_logit_softcapping", [1.5]),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma3_text", "query_pre_attn_scalar", {}),
        ("gemma3_text", "sliding_window_pattern", 0),
        ("gemma3_text", "rope_local_base_freq", "many"),
        ("cohere", "logit_scale", []),
        ("qwen3_moe", "decoder_sparse_step", ""),
        ("qwen3_moe", "mlp_only_layers", "\0"),
        ("qwen3_moe", "moe_intermediate_size", float("nan")),
        ("qwen3_moe", "norm_topk_prob", "false"),
        ("qwen2", "max_window_layers", "all"),
        ("smollm3", "no_rope_layers", [1]),
        ("gpt_oss", "swiglu_limit", "yarn"),
        ("llama", "attention_bias", "false"),
        ("starcoder2", "use_bias", 1),
    ],
)
def test_a_bad_field_is_named(model_type: str, field: str, value: Any) -> None:
    source = {**SIZES, "use_sliding_window": model_type == "qwen2", field: value}
    with pytest.raises(ConfigError, match=f"^{field} is .*allowed: "):
        model_class(model_type)(source)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma3", {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.5}),
        (
            "gemma3",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                }
            },
        ),
        ("gpt-oss", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
        ("gpt-oss", {"rope_parameters": None}),
        ("smollm3", {"rope_parameters": None}),
        ("cohere", {"rope_parameters": None}),
    ],
)
def test_what_a_file_says_or_leaves_out_is_as_transformers_has_it(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    made = make_tiny(name, tmp_path, **changes)
    x = prompt(2, CONTEXT)
    expected = peer_logits(made.peer, x)
    model = made.model()
    assert_near(model(x)[0], expected)
    model.save(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    assert_near(peer_logits(again, x), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["smollm3", "cohere", "gpt-oss", "gemma2"])
def test_a_silent_config_has_the_published_constants(name: str, tmp_path: Path) -> None:
    dropped = ("rope_parameters", "attn_logit_softcapping", "final_logit_softcapping")
    published = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} if name == "gemma2" else {}
    made = make_tiny(name, tmp_path, **published, rope_parameters=None)
    x = prompt(2, CONTEXT)
    assert_near(made.model(**dict.fromkeys(dropped, REMOVED))(x)[0], peer_logits(made.peer, x))
