"""genx: text generation for the terminal, and the small, exact library under it.

`genx.load_model(folder)` and `genx.load_tokenizer(folder)` are the way in. Importing genx does not import torch.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["__version__", "load_model", "load_tokenizer"]

if TYPE_CHECKING:
    from genx.checkpoint import load_model as load_model
    from genx.tokenization import load_tokenizer as load_tokenizer


def __getattr__(name: str) -> object:
    if name == "load_model":
        from genx.checkpoint import load_model

        return load_model
    if name == "load_tokenizer":
        from genx.tokenization import load_tokenizer

        return load_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
