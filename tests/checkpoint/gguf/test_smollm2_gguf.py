"""SmolLM2-135M-Instruct in 4 bits, as scripts/fetch_smollm2 leaves it in the models folder, against llama.cpp."""

from pathlib import Path

import pytest
import torch

from genx.checkpoint import load_model, resolve_model
from genx.core.base_model import BaseModel
from genx.engine.arithmetic import choose_arithmetic
from genx.engine.loading import load_to_run
from genx.errors import CheckpointError
from genx.kernels.library import native_library
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


@pytest.mark.skipif(isinstance(native_library(), str), reason="needs the compiled operations")
def test_blocks_stay_in_the_file_s_size_and_give_the_same_logits(
    file: Path, tokenizer: Tokenizer, model: BaseModel
) -> None:
    kept = load_to_run(file, choose_arithmetic("cpu", "auto", "none", "native"))
    assert kept.weights == "int4 and int8"
    assert kept.weight_bytes < file.stat().st_size
    for text in TEXTS[:6]:
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            found, expected = kept.model(ids)[0], model(ids)[0]
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_probabilities_differ_by_the_noise_of_8_bits(witness: LlamaCpp, tokenizer: Tokenizer, model: BaseModel) -> None:
    """llama.cpp rounds what it multiplies 4-bit weights with to 8 bits; genx multiplies floats."""
    for text in TEXTS[:6]:
        ids = tokenizer.encode(text)
        assert_probabilities(model, witness, ids, tolerance=0.5)
