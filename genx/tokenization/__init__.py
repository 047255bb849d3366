"""tokenizer.json to ids, incremental text and chat templates. Imports no torch."""

from genx.tokenization.incremental import IncrementalDecoder
from genx.tokenization.tokenizer import Tokenizer, load_tokenizer

__all__ = ["IncrementalDecoder", "Tokenizer", "load_tokenizer"]
