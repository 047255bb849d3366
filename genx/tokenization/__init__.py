"""tokenizer.json to ids, incremental text and chat templates. Imports no torch."""

from genx.tokenization.incremental import IncrementalDecoder
from genx.tokenization.tokenizer import Tokenizer, load_tokenizer
from genx.tokenization.tokenizer_files import has_tokenizer

__all__ = ["IncrementalDecoder", "Tokenizer", "has_tokenizer", "load_tokenizer"]
