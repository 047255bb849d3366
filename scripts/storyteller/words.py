"""The words that the questions to an instruct model and the story grammar share."""

from pathlib import Path


def _read_words(file: Path) -> dict[str, list[str]]:
    text = file.read_text(encoding="utf-8").replace("\n  ", " ")
    lines = (line.partition(": ") for line in text.splitlines() if line[:1] != "#")
    return {kind: words.split(", ") for kind, _, words in lines if kind}


WORDS = _read_words(Path(__file__).with_name("words.txt"))
"""Words by kind, as words.txt lists them."""


def with_article(words: str) -> str:
    """`words` with the indefinite article that their sound asks for."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
