"""SmolLM2-135M-Instruct in 4 bits, as scripts/fetch_smollm2 leaves it in the models folder, against llama.cpp."""

from pathlib import Path

import pytest
import torch

from genx.checkpoint import load_model, resolve_model
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError
from genx.tokenization import Tokenizer, load_tokenizer
from tests.fixtures.llama_cpp import TEXTS, LlamaCpp, assert_probabilities

pytestmark = [pytest.mark.real_model, pytest.mark.xdist_group("real_model")]


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return resolve_model("smollm2-135m-q4_1")
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def witness(file: Path) -> LlamaCpp:
    return LlamaCpp(file, context=512)


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Tokenizer:
    return load_tokenizer(file)


@pytest.fixture(scope="module")
def model(file: Path) -> BaseModel:
    return load_model(file)


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_ids(text: str, witness: LlamaCpp, tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(text) == witness.encode(text)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("question", ["Name three primary colours.", "Count from one to ten.", "What is 2+2?"])
def test_the_same_greedy_text(question: str, witness: LlamaCpp, tokenizer: Tokenizer, model: BaseModel) -> None:
    ids = tokenizer.encode_chat([{"role": "user", "content": question}])
    own = model.generate(torch.tensor([ids]), 30, False, eos_token_id=[2, 0])[0, len(ids) :].tolist()
    assert tokenizer.decode(own) == witness.greedy(ids, 30)


def test_probabilities_differ_by_the_noise_of_8_bits(witness: LlamaCpp, tokenizer: Tokenizer, model: BaseModel) -> None:
    """llama.cpp rounds what it multiplies 4-bit weights with to 8 bits; genx multiplies floats."""
    for text in TEXTS[:6]:
        ids = tokenizer.encode(text)
        assert_probabilities(model, witness, ids, tolerance=0.5)
