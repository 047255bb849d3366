"""GGUF files through genx against llama.cpp on the same files; runs where the package xllamacpp is installed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from genx.checkpoint import convert_model, load_model
from genx.gguf.pre_tokenizers import PRE_TOKENIZERS
from genx.tokenization import load_tokenizer
from tests.architectures import RECIPES, make_tiny
from tests.checkpoint.gguf.test_architectures import TAKEN_FOR_GRANTED
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf, sentencepiece_tokenizer
from tests.fixtures.llama_cpp import TEXTS, LlamaCpp, assert_probabilities
from tests.fixtures.mxfp4 import make_packed

pytestmark = pytest.mark.xdist_group("llama_cpp")

# llama.cpp leaves out windows that these were trained with; and it reads Cohere's norms in the largest model only.
_AS_LLAMA_CPP: dict[str, dict[str, Any]] = {"phi3": {"sliding_window": None}, "cohere": {"use_qk_norm": False}}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("gpt", "phi3-longrope")])
def test_every_architecture_s_tiny_model(name: str, tmp_path: Path) -> None:
    """Against the tolerance: llama.cpp takes GELU from a table of half floats, and the tanh form for GPT-NeoX."""
    changes = TAKEN_FOR_GRANTED.get(name, {}) | _AS_LLAMA_CPP.get(name, {})
    tiny = make_tiny(name, tmp_path, vocab_size=300, **changes)
    file = convert_to_gguf(tiny.folder, tmp_path / "tiny.gguf", metadata=byte_level_tokenizer(size=300))
    model, witness = load_model(file), LlamaCpp(file, context=40)
    random = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (length,), generator=random).tolist() for length in (5, 9, 14, 20, 26)]
    assert sum(assert_probabilities(model, witness, ids, tolerance=0.02) for ids in prompts) >= 20


@pytest.mark.parametrize("context", [256, 512])
def test_longrope_on_both_sides(context: int, tmp_path: Path) -> None:
    """llama.cpp goes by the size of its cache, so that it agrees where the text is as long as that lets it be."""
    sizes = {"original_max_position_embeddings": 300, "max_position_embeddings": 600}
    tiny = make_tiny("phi3-longrope", tmp_path, vocab_size=300, **sizes)
    file = convert_to_gguf(tiny.folder, tmp_path / "tiny.gguf", metadata=byte_level_tokenizer(size=300))
    model, witness = load_model(file), LlamaCpp(file, context=context)
    random = torch.Generator().manual_seed(1)
    lengths = (9, 20, 200, 250) if context <= 300 else (301, 350, 480, 500)
    prompts = [torch.randint(0, 256, (length,), generator=random).tolist() for length in lengths]
    assert sum(assert_probabilities(model, witness, ids, tolerance=0.02) for ids in prompts) >= 20


def test_gpt_oss_with_experts_in_mxfp4(tmp_path: Path) -> None:
    """With experts in floats both agree within 0.001; for blocks llama.cpp rounds what they multiply to 8 bits."""
    folder = convert_model(make_packed(tmp_path, scales=(119, 123), vocab_size=300).folder, tmp_path / "floats")
    keys = byte_level_tokenizer(size=300)
    for experts, tolerance in (("F32", 0.002), ("MXFP4", 0.03)):
        file = convert_to_gguf(folder, tmp_path / f"{experts}.gguf", experts=experts, metadata=keys)
        model, witness = load_model(file), LlamaCpp(file, context=40)
        random = torch.Generator().manual_seed(1)
        prompts = [torch.randint(0, 256, (length,), generator=random).tolist() for length in (5, 9, 14, 20, 26)]
        assert sum(assert_probabilities(model, witness, ids, tolerance) for ids in prompts) >= 40


def tiny_llama(path: Path, tokenizer: dict[str, Any], parent: Path) -> Path:
    """A Llama that only serves to load a tokenizer with."""
    size = len(tokenizer["tokenizer.ggml.tokens"])
    tiny = make_tiny("llama", parent, vocab_size=size, num_hidden_layers=1)
    return convert_to_gguf(tiny.folder, path, metadata=tokenizer)


def learned_merges(count: int) -> list[str]:
    """Merges across all borders of words, so that a border at another place gives other ids."""
    learner = Backend(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    corpus = [text for text in TEXTS for _ in range(3)] + [part for text in TEXTS for part in text.split(" ")]
    learner.train_from_iterator(corpus, trainer)
    return [" ".join(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]


@pytest.fixture(scope="module")
def merges() -> list[str]:
    return learned_merges(1500)


# llama.cpp does not bring texts into the normal form that these models' own tokenizers do.
_NORMALIZED = {"qwen2", "olmo", "command-r"}
# Its expressions for these know upper and lower case of English letters only, the models' own know those of all.
_ENGLISH = {"tekken", "gpt-4o"}
# Names that mean the same pre-tokenizer, or that this llama.cpp does not know.
_ONE_OF_EACH = (
    "gpt-2", "olmo", "starcoder", "smollm", "command-r", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "falcon",
    "deepseek-llm", "deepseek-coder", "deepseek-v3", "default",
)  # fmt: skip


@pytest.mark.parametrize("name", _ONE_OF_EACH)
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(name: str, merges: list[str], tmp_path: Path) -> None:
    assert name in PRE_TOKENIZERS
    file = tiny_llama(tmp_path / "tiny.gguf", dict(byte_level_tokenizer(merges, pre=name)), tmp_path)
    tokenizer, witness = load_tokenizer(file), LlamaCpp(file, context=40)
    for text in TEXTS:
        if not ("\u0301" in text and name in _NORMALIZED) and (text.isascii() or name not in _ENGLISH):
            assert tokenizer.encode(text, add_special_tokens=False) == witness.encode(text), text


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_merges_as_llama_cpp_does(space_prefix: bool, tmp_path: Path) -> None:
    pieces = sorted({text[start : start + size].replace(" ", "▁") for text in TEXTS[:12]
                     for size in (2, 3, 4, 6) for start in range(0, len(text) - size, size)})  # fmt: skip
    keys = dict(sentencepiece_tokenizer(pieces, add_space_prefix=space_prefix))
    file = tiny_llama(tmp_path / "tiny.gguf", keys, tmp_path)
    tokenizer, witness = load_tokenizer(file), LlamaCpp(file, context=40)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == witness.encode(text), text
        assert tokenizer.decode(ids) == text
