"""How a byte-level BPE cuts a text into words, by the names that GGUF files give it in `tokenizer.ggml.pre`.

The patterns are those of the tokenizer.json of the models that the names stand for; which name means which model:
llama.cpp, src/llama-vocab.cpp. A Split takes its matches and what lies between them as words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genx.errors import TokenizerError
from genx.messages import printable

Step = dict[str, Any]

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_ENDINGS}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_ENDINGS}"
_TEKKEN = rf"{'|'.join(_CASED_WORDS)}|\p{{N}}|{_ENDINGS_WITH_SLASH}"
_O200K = rf"{'|'.join(f'{word}{_CONTRACTION}?' for word in _CASED_WORDS)}|\p{{N}}{{1,3}}|{_ENDINGS_WITH_SLASH}"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_UNNAMED = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")  # what llama.cpp does without a name
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut words.

    Attributes:
        patterns: regular expressions, each applied to the words that those before it leave.
        normal_form: Unicode's normal form that texts are brought into first, None for none.
        whole_words: a word that is a token is that token, whatever the merges say.
        begins_with_bos: BOS comes before every text where the file does not say.
    """

    patterns: tuple[str, ...]
    normal_form: str | None = None
    whole_words: bool = False
    begins_with_bos: bool = False

    def steps(self, *, add_prefix_space: bool) -> Step:
        """The `pre_tokenizer` of a tokenizer.json."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True}
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, {**byte_level, "use_regex": False}]}


def _named(pre_tokenizer: PreTokenizer, names: str) -> Mapping[str, PreTokenizer]:
    return dict.fromkeys(names.split(), pre_tokenizer)


_BY_NAME: Mapping[str, PreTokenizer] = {
    **_named(PreTokenizer((_GPT2,)), "gpt-2 phi-2 mpt jais trillion exaone4 mellum gigachat a.x-4.0 modern-bert"),
    **_named(PreTokenizer((_GPT2,), normal_form="NFC"), "olmo"),
    **_named(PreTokenizer((r"\p{N}", _GPT2)), "starcoder smollm refact codeshell exaone minerva-7b"),
    **_named(PreTokenizer((r"\p{N}", _GPT2), normal_form="NFC"), "command-r"),
    **_named(
        PreTokenizer((_LLAMA3,), whole_words=True, begins_with_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    **_named(PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_named(PreTokenizer((_QWEN2,), normal_form="NFC"), "qwen2 deepseek-r1-qwen megrez"),
    **_named(PreTokenizer((_TEKKEN,), whole_words=True, begins_with_bos=True), "tekken"),
    **_named(PreTokenizer((_O200K,)), "gpt-4o llama4 kanana2"),
    **_named(PreTokenizer(_FALCON), "falcon"),
    **_named(PreTokenizer(_DEEPSEEK_LLM), "deepseek-llm"),
    **_named(PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
    **_named(PreTokenizer(_DEEPSEEK_V3), "deepseek-v3"),
    **_named(PreTokenizer(_UNNAMED), "default"),
}
PRE_TOKENIZERS: Sequence[str] = tuple(_BY_NAME)
"""The names that are known."""


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of that name.

    Raises:
        TokenizerError: genx does not know it; to guess would give other ids without a sign of it.
    """
    if name not in _BY_NAME:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {printable(name)!r}; allowed: {', '.join(sorted(_BY_NAME))}; "
            "get the model as a Hugging Face folder, whose tokenizer.json says how to cut words"
        )
    return _BY_NAME[name]
