"""Control tokens: which texts they have, and how to read a text in which some of them are plain words.

A token is a control token if tokenizer.json marks it as special, if the tokenizer's configuration lists it as such,
or if it stands in a chat template and is no word. Other added tokens, such as runs of spaces or HTML tags, are
ordinary vocabulary.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, backend: Backend, special_texts: Iterable[str], template_sources: Iterable[str]) -> None:
        """Args:
        backend: the tokenizer as the file describes it.
        special_texts: texts that the configuration calls special.
        template_sources: the chat templates.
        """
        self._backend = backend
        named = frozenset(special_texts)
        sources = "\n".join(template_sources)
        self.ids: dict[str, int] = {}
        patterns = []
        for token_id, token in backend.get_added_tokens_decoder().items():
            text = token.content
            if text and (token.special or text in named or _stands_in(sources, text)):
                self.ids[text] = token_id
                word = re.escape(text)
                patterns.append((len(text), rf"(?<!\w){word}(?!\w)" if token.single_word else word))
        longest_first = [pattern for _, pattern in sorted(patterns, reverse=True)]
        self._pattern = re.compile("|".join(longest_first) or r"(?!)")
        self._id_set = frozenset(self.ids.values())

    @property
    def first_signs(self) -> frozenset[str]:
        """The signs that control tokens begin with."""
        return frozenset(text[0] for text in self.ids)

    def find(self, text: str) -> list[str]:
        """The control tokens that stand in a text, in order."""
        return self._pattern.findall(text)

    def count(self, ids: Iterable[int]) -> int:
        """How many of the ids are control tokens."""
        return sum(token_id in self._id_set for token_id in ids)

    def rename(self, text: str) -> str:
        """The text with each control token under the name that `renamed` knows it by."""
        return self._pattern.sub(lambda match: self._names[match[0]], text)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        # Nobody can write such a name in a prompt: it is drawn anew for every tokenizer.
        secret = secrets.token_hex(16)
        return {text: f"genx{secret}x{token_id}x" for text, token_id in self.ids.items()}

    @cached_property
    def renamed(self) -> Backend:
        """The same tokenizer, but that control tokens have other names; so their usual texts are plain texts.

        Ids, matching rules and whatever else the file says stay, and so does the tokenization of the text around.
        """
        description = json.loads(self._backend.to_str())
        for token in description["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        self._rename_vocabulary(description["model"])
        return Backend.from_str(json.dumps(description))

    def _rename_vocabulary(self, model: dict[str, Any]) -> None:
        names = self._names
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(text, text): token_id for text, token_id in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
            model["merges"] = [pair for pair in pairs if not names.keys() & {*pair, "".join(pair)}]


def _stands_in(sources: str, text: str) -> bool:
    # A template's code is full of words and short signs, which say nothing about the vocabulary.
    return len(text.strip()) > 2 and not text[0].isalnum() and text in sources
