"""The tokenizer: byte-level BPE learned from the stories, so that any text can be read and nothing is unknown."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of `vocabulary` pieces, END among them; END comes before every text that is encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, which transformers reads too."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that `save_tokenizer` wrote."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
