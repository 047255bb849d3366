"""GGUF files that are something else, damaged, or of models that genx has not: one line each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genx.checkpoint import load_model, read_config_json, read_generation_defaults
from genx.errors import GenxError
from genx.gguf.header import read_gguf_header
from genx.tokenization import load_tokenizer
from tests.architectures import make_tiny
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf, sentencepiece_tokenizer, write_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny")).folder


Write = Callable[..., Path]


@pytest.fixture
def write(folder: Path, tmp_path: Path) -> Write:
    def write_file(**arguments: Any) -> Path:
        return convert_to_gguf(folder, tmp_path / "tiny.gguf", **arguments)

    return write_file


def refusal(act: Callable[[Path], Any], file: Path) -> str:
    with pytest.raises(GenxError) as caught:
        act(file)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.attention.head_count": 7}, "num_attention_heads is 7 and num_key_value_heads 2"),
        ({"llama.attention.head_count": 0}, "num_attention_heads is 0; allowed"),
        ({"llama.attention.head_count": [6, 6, 6]}, "llama.attention.head_count is [6, 6, 6]; allowed: a whole number"),
        ({"llama.embedding_length": 1 << 30}, "hidden_size is 1073741824; allowed"),
        ({"llama.block_count": None}, "the configuration has no num_hidden_layers"),
        ({"llama.block_count": 2}, "does not hold the llama model of its config.json: 9 unexpected"),
        ({"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base is nan; allowed: a finite number"),
        ({"llama.rope.freq_base": -1.0}, "rope_theta is -1.0; allowed"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -2.0}, "factor in rope_scaling is -2.0"),
        ({"llama.rope.scaling.type": "spiral"}, "rope_type is 'spiral'; allowed"),
        ({"llama.attention.key_length": 12}, "attn_q"),
        ({"llama.expert_count": 3, "llama.expert_used_count": 1}, "tensors that genx's mixtral does not have: "),
    ],
)  # fmt: skip
def test_metadata_that_no_such_model_has(metadata: dict[str, Any], said: str, write: Write) -> None:
    assert said.replace("attn_q", "self_attn.q_proj.weight [60, 36], expected [72, 36]") in refusal(
        load_model, write(metadata=metadata)
    )


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"blk__0__attn_q_norm__weight": np.zeros(36)}, "holds 1 tensors that genx's llama does not have: "),
        ({"clip__weight": np.zeros(36)}, "does not have: clip.weight"),
        ({"blk__0__attn_q__weight": np.zeros((61, 36))}, "cannot be made of [[61, 36]]"),
        ({"token_embd__weight": np.zeros(36)}, "has no token_embd.weight with two dimensions"),
        ({"rope_freqs__weight": np.full(5, 3.0)}, "rope_freqs.weight holds frequencies that are not those of Llama"),
        ({"rope_freqs__weight": np.full((5, 2), 3.0)}, "rope_freqs.weight is F32 [5, 2]; allowed: F32, up to"),
        ({"rope_factors_long__weight": np.full(5, 3.0)}, "short_factor in rope_scaling is None; allowed: a list of 5"),
        (
            {f"rope_factors_{part}__weight": np.full(4, 3.0) for part in ("long", "short")},
            "short_factor in rope_scaling is 4 values; allowed: a list of 5, one for each channel pair",
        ),
        ({"rope_factors_long__weight": np.full((5, 2), 3.0)}, "rope_factors_long.weight is F32 [5, 2]; allowed: F32"),
    ],
)  # fmt: skip
def test_tensors_that_no_such_model_has(further: dict[str, Any], said: str, write: Write) -> None:
    tensors = {name: tensor.astype(np.float32) for name, tensor in further.items()}
    assert said in refusal(load_model, write(**tensors))


def test_an_architecture_that_genx_has_not(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "mamba.gguf", "mamba\x1b", {}, {"a": (np.zeros(4, np.float32), "F32")})
    for act in (load_model, read_config_json, read_generation_defaults):
        assert "has the architecture mamba\\x1b; as GGUF genx reads cohere, gemma" in refusal(act, file)


def test_a_file_without_a_tokenizer(write: Write) -> None:
    file = write()
    assert "tokenizer.ggml.model is 'None'; allowed: gpt2 (byte-level BPE) or llama" in refusal(load_tokenizer, file)
    assert read_generation_defaults(file).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "from-the-future"}, "tokenizer.ggml.pre is 'from-the-future'; allowed: a.x-4.0, chatglm-bpe, "),
        ({"model": "t5"}, "tokenizer.ggml.model is 't5'; allowed: gpt2"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "the vocabulary has 'a' twice"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for 258 tokens"),
        ({"merges": ["nospace"]}, "tokenizer.ggml.merges has an entry that is no pair"),
        ({"merges": ["not there"]}, "makes no tokenizer"),
        ({"merges": None}, "tokenizer.ggml.merges is missing, too long, or holds something else"),
    ],
)  # fmt: skip
def test_byte_level_tokenizers_that_do_not_work(changes: dict[str, Any], said: str, write: Write) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    assert said in refusal(load_tokenizer, write(metadata={**byte_level_tokenizer(["h e"]), **keys}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries for"),
        ({"tokens": ["x" * 20000, "y"], "token_type": [1, 1], "scores": [0.0, 0.0]}, "vocabulary are too long"),
    ],
)
def test_sentencepiece_tokenizers_that_do_not_work(changes: dict[str, Any], said: str, write: Write) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    assert said in refusal(load_tokenizer, write(metadata={**sentencepiece_tokenizer(["ab", "abc"]), **keys}))


class TestDamage:
    """What the header says is held against the file before anything is allocated."""

    def test_a_file_that_ends_early(self, write: Write) -> None:
        file = write()
        file.write_bytes(file.read_bytes()[:-40])
        assert "is truncated: blk.2." in (said := refusal(load_model, file)) or "is truncated: output" in said

    def test_tensors_that_overlap(self, write: Write) -> None:
        file = write()
        content = bytearray(file.read_bytes())
        at = content.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 16 + 4
        content[at : at + 8] = bytes(8)  # where the first tensor lies
        file.write_bytes(content)
        assert "overlaps the tensor before it" in refusal(load_model, file)

    def test_tensors_that_are_not_aligned(self, write: Write) -> None:
        file = write()
        content = bytearray(file.read_bytes())
        at = content.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 16 + 4
        content[at] += 4
        file.write_bytes(content)
        assert "the tensor 'blk.1.ffn_up.weight' is not aligned to 32 bytes" in refusal(load_model, file)

    def test_an_element_type_that_there_is_not(self, write: Write) -> None:
        file = write()
        content = bytearray(file.read_bytes())
        at = content.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 16
        content[at] = 200
        file.write_bytes(content)
        assert "blk.1.ffn_up.weight has elements of ggml's type 200; known: F32, F16" in refusal(load_model, file)

    def test_rows_that_are_no_whole_blocks(self, write: Write) -> None:
        file = write()
        content = bytearray(file.read_bytes())
        at = content.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 16
        content[at] = 2
        file.write_bytes(content)
        assert "[36, 52]; allowed: rows of whole blocks of 32 values" in refusal(load_model, file)

    def test_more_of_anything_than_a_model_has(self, write: Write) -> None:
        file = write()
        content = bytearray(file.read_bytes())
        content[16:24] = (3000).to_bytes(8, "little")
        file.write_bytes(bytes(content) + bytes(40000))
        assert "announces 3,000 metadata pairs; allowed: at most 2,048" in refusal(read_gguf_header, file)


class TestSeveralFiles:
    @pytest.fixture
    def parts(self, folder: Path, tmp_path: Path) -> list[Path]:
        """A model whose last layer is in a second file."""
        whole = convert_to_gguf(folder, tmp_path / "whole.gguf")
        header = read_gguf_header(whole)
        data = whole.read_bytes()
        halves: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for name, tensor in header.tensors.items():
            count = int(np.prod(tensor.shape))
            values = np.frombuffer(data, np.float32, count, tensor.offset).reshape(tensor.shape[::-1])
            halves[name.startswith("blk.2.")][name] = (values, "F32")
        keys = {key: value for key, value in header.metadata.items() if key.startswith("llama.")}
        return [
            write_gguf(tmp_path / f"m-0000{number}-of-00002.gguf", "llama", keys if number == 1 else {}, half)
            for number, half in enumerate(halves, 1)
        ]

    def test_they_are_one_model(self, parts: list[Path], folder: Path) -> None:
        whole = load_model(folder).state_dict()
        for part in parts[:1]:
            assert {name: tensor.tolist() for name, tensor in load_model(part).state_dict().items()} == {
                name: tensor.tolist() for name, tensor in whole.items()
            }

    def test_a_missing_one_is_named(self, parts: list[Path]) -> None:
        parts[1].unlink()
        assert "lacks 1 of the 2 files of m-00001-of-00002.gguf: m-00002-of-00002.gguf" in refusal(load_model, parts[0])

    def test_a_tensor_in_both_is_refused(self, parts: list[Path]) -> None:
        parts[1].write_bytes(parts[0].read_bytes())
        assert "is in another file of this model too" in refusal(load_model, parts[0])
