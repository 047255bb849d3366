"""The real SmolLM2-135M-Instruct, as scripts/fetch_smollm2 lays it out."""

from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

from genx.checkpoint import load_model, read_generation_defaults, resolve_model
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError

# The group keeps the model in one process when tests run in several.
pytestmark = [pytest.mark.real_model, pytest.mark.xdist_group("real_model")]

PROMPTS = [
    "Write a short story about a fox.",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n",
]

# What llama.cpp makes of these texts with the GGUF file that the model comes from.
LLAMA_CPP_IDS = {
    "Write a short story about a fox.": [19161, 253, 1890, 1977, 563, 253, 16438, 30],
    "  5": [256, 37],
    "a ½ in 2024": [81, 216, 16738, 281, 216, 34, 32, 34, 36],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
    "🦊 don't": [10813, 116, 228, 1326, 982],
}


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where it is, or skip."""
    try:
        return resolve_model("smollm2-135m")
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def own(folder: Path) -> BaseModel:
    return load_model(folder)


def test_its_tokenizer_gives_llama_cpp_s_ids(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert {text: tokenizer.encode(text).ids for text in LLAMA_CPP_IDS} == LLAMA_CPP_IDS
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    assert {text: peer.encode(text) for text in LLAMA_CPP_IDS} == LLAMA_CPP_IDS


def test_its_ids(folder: Path) -> None:
    defaults = read_generation_defaults(folder)
    assert defaults.eos_token_ids[0] == 2
    assert (defaults.bos_token_id, defaults.pad_token_id) == (1, 2)


def test_it_is_read_whole(own: BaseModel) -> None:
    assert sum(parameter.numel() for parameter in own.parameters()) == 134_515_008
    assert own.head_is_tied
    assert {parameter.dtype for parameter in own.parameters()} == {torch.float32}


def test_greedy_text_equals_transformers(folder: Path, own: BaseModel) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        expected = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert own.generate(ids, 24, False, eos_token_id=2).tolist() == expected.tolist(), prompt
