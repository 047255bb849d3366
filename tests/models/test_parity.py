"""Logits and greedy text equal transformers', through save_pretrained and genx's loader."""

from pathlib import Path

import pytest
import torch
import transformers

import genx
from genx.core.base_model import BaseModel
from tests.architectures import CONTEXT, TOLERANCE, Tiny, assert_near, distance, make_tiny, prompt


@torch.no_grad()
def peer_logits(peer: transformers.PreTrainedModel, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = peer(x).logits
    return logits


@torch.no_grad()
def test_logits_equal_transformers(tiny: Tiny, model: BaseModel) -> None:
    """Through the file: input-first weights of the GPTs (huggingface/transformers#311) show here too."""
    x = prompt(2, CONTEXT)
    assert_near(model(x)[0], peer_logits(tiny.peer, x))


@torch.no_grad()
def test_a_changed_constant_shows(tiny: Tiny) -> None:
    x = prompt(2, CONTEXT)
    changes = dict(tiny.recipe.visible)
    if tiny.recipe.rope:
        changes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_500.0}
    for name, value in changes.items():
        changed = tiny.model(**{name: value})
        assert distance(changed(x)[0], peer_logits(tiny.peer, x)) > TOLERANCE, name


def test_64_greedy_tokens_equal_transformers(tiny: Tiny, tmp_path: Path) -> None:
    made = make_tiny(tiny.name, tmp_path, **{tiny.recipe.positions: 80})
    x = prompt(1, 9)
    expected = made.peer.generate(x, max_new_tokens=64, do_sample=False, pad_token_id=0, eos_token_id=None)
    found = made.model().generate(x, 64, do_sample=False)
    assert found.tolist() == expected.tolist()
    assert len(set(found[0].tolist())) > 12, "a text that repeats itself proves little"


@torch.no_grad()
def test_bfloat16_is_as_near_as_transformers_own(tiny: Tiny) -> None:
    x = prompt(2, CONTEXT)
    reference = peer_logits(tiny.peer, x)
    peer = transformers.AutoModelForCausalLM.from_pretrained(
        tiny.folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    own = genx.load_model(tiny.folder, dtype=torch.bfloat16)

    def mean_distance(logits: torch.Tensor) -> float:
        return float((logits.double() - reference.double()).square().mean().sqrt())

    assert mean_distance(own(x)[0]) <= 1.5 * mean_distance(peer_logits(peer, x))


@torch.no_grad()
def test_what_save_writes_transformers_reads(tiny: Tiny, model: BaseModel, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    x = prompt(2, CONTEXT)
    assert_near(peer_logits(peer, x), peer_logits(tiny.peer, x))
    again = type(model).load(tmp_path / "saved")
    assert torch.equal(again(x)[0], model(x)[0])


@torch.no_grad()
def test_square_input_first_matrices_are_not_transposed(tmp_path: Path) -> None:
    """huggingface/transformers#311: where n_inner = n_embd no shape can warn."""
    made = make_tiny("gpt2", tmp_path, n_inner=36)
    x = prompt(2, CONTEXT)
    assert_near(made.model()(x)[0], peer_logits(made.peer, x))


ROPE = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 5,
        "long_factor": [1.0, 1.5, 2.0, 5.0, 9.0],
        "factor": 4.0,
        "original_max_position_embeddings": 10,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 10,
        "mscale": 0.8,
        "mscale_all_dim": 0.6,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 10,
        "attention_factor": 1.0,
        "truncate": False,
    },
}


@torch.no_grad()
@pytest.mark.parametrize("kind", ROPE)
def test_rope_scaling_equals_transformers(kind: str, tmp_path: Path) -> None:
    """meta-llama/llama3#299: the llama3 form was refused."""
    made = make_tiny("llama", tmp_path, rope_parameters={"rope_theta": 5000.0, **ROPE[kind]})
    x = prompt(2, CONTEXT)
    model = made.model()
    assert_near(model(x)[0], peer_logits(made.peer, x))
    # The older spelling of published files gives the same model.
    old = {**ROPE[kind], "type": ROPE[kind]["rope_type"]}
    del old["rope_type"]
    spelled = made.model(rope_parameters=None, rope_theta=5000.0, rope_scaling=old)
    assert torch.equal(spelled(x)[0], model(x)[0])
