"""What a checkpoint folder says about its tokenizer, read with bounds and without trust."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from genx.errors import TokenizerError
from genx.messages import printable

# Published files are far smaller: tokenizer.json has at most about 35 MB, a chat template some 20 kB.
_MAX_TOKENIZER_BYTES = 256 << 20
_MAX_CONFIG_BYTES = 32 << 20
_MAX_TEMPLATE_BYTES = 1 << 20

# The names under which tokenizer_config.json and special_tokens_map.json give a token a role.
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer's files, read.

    `named_tokens` maps a role such as "bos_token" to its text, `special_texts` are further texts that the folder
    calls special, `chat_templates` maps a template's name to its source.
    """

    backend: Backend
    config: Mapping[str, Any] = field(default_factory=dict)
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    special_texts: frozenset[str] = frozenset()
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def read_tokenizer_files(path: Path) -> TokenizerFiles:
    """Read what a model says about its tokenizer.

    Args:
        path: a folder with tokenizer.json, and perhaps tokenizer_config.json, special_tokens_map.json and templates;
            or a GGUF file.

    Raises:
        TokenizerError: there is no tokenizer, or a file cannot be read, is too large or is not what it should be.
        CheckpointError: a GGUF file's header is damaged.
    """
    if path.is_file():
        return _read_gguf(path)
    config = _read_object(path / "tokenizer_config.json")
    tokens_map = _read_object(path / "special_tokens_map.json")
    return _assemble(_read_backend(path), config, tokens_map, _read_chat_templates(path, config))


def _read_gguf(path: Path) -> TokenizerFiles:
    from genx.gguf.parts import read_gguf_model
    from genx.gguf.tokenizer import tokenizer_config, tokenizer_json
    from genx.gguf.vocabulary import TOKENIZER_ARRAYS

    metadata = read_gguf_model(path, whole=TOKENIZER_ARRAYS).metadata
    try:
        description, config = json.dumps(tokenizer_json(metadata)), tokenizer_config(metadata)
    except TokenizerError as error:
        raise TokenizerError(f"{printable(path)}: {error}") from error
    with library_errors(f"the vocabulary of {printable(path)} makes no tokenizer"):
        backend = Backend.from_str(description)
    return _assemble(backend, config, {}, _named_templates(config))


def _assemble(
    backend: Backend, config: Mapping[str, Any], tokens_map: Mapping[str, Any], chat_templates: Mapping[str, str]
) -> TokenizerFiles:
    named_tokens = {}
    for role in NAMED_TOKENS:
        text = _token_text(config.get(role)) or _token_text(tokens_map.get(role))
        if text:
            named_tokens[role] = text
    return TokenizerFiles(
        backend=backend,
        config=config,
        named_tokens=named_tokens,
        special_texts=_special_texts(config) | _special_texts(tokens_map) | frozenset(named_tokens.values()),
        chat_templates=chat_templates,
    )


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn whatever the `tokenizers` library raises into a TokenizerError that begins with `problem`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the library is not an Exception
        raise TokenizerError(f"{problem}: {printable(error)}") from error


def _read_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(_explain_absence(folder))
    data = _read_bytes(path, _MAX_TOKENIZER_BYTES)
    with library_errors(f"{printable(path)} is not a tokenizer"):
        return Backend.from_buffer(data)


def _explain_absence(folder: Path) -> str:
    if not folder.is_dir():
        return f"{printable(folder)} is not a folder; a tokenizer is read from a folder that holds tokenizer.json"
    if (folder / "tokenizer.model").is_file():
        return (
            f"{printable(folder)} has tokenizer.model (sentencepiece), but tokenizer.json is missing; download it from "
            "the model's page, or let transformers convert: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return f"tokenizer.json is missing in {printable(folder)}; download it from the model's page into this folder"


def _read_bytes(path: Path, limit: int) -> bytes:
    """The file's bytes without a byte-order mark."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise TokenizerError(f"{printable(path)} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise TokenizerError(f"{printable(path)} has more than {limit:,} bytes, the most that genx reads")
    return data.removeprefix(b"\xef\xbb\xbf")


def _read_text(path: Path, limit: int) -> str:
    try:
        return _read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{printable(path)} is not UTF-8: byte {error.start} cannot be decoded") from error


def _read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file that may be absent."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{printable(path)} is not JSON: {printable(error)}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{printable(path)} holds a JSON {type(content).__name__}; expected an object")
    return content


def _token_text(value: object) -> str | None:
    """A token's text, which is written as such or as the `content` of an object."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special_texts(content: Mapping[str, Any]) -> frozenset[str]:
    listed: list[object] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = content.get(key)
        if isinstance(values, Mapping):
            listed += values.values()
        elif isinstance(values, list):
            listed += values
    added = content.get("added_tokens_decoder")
    if isinstance(added, Mapping):
        listed += [token for token in added.values() if isinstance(token, Mapping) and token.get("special") is True]
    return frozenset(text for text in map(_token_text, listed) if text)


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Template sources by name; chat_template.jinja goes before what tokenizer_config.json holds."""
    templates = _named_templates(config)
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates["default"] = _read_text(path, _MAX_TEMPLATE_BYTES)
    return templates


def _named_templates(config: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    match config.get("chat_template"):
        case str(source):
            templates["default"] = source
        case list(entries):
            for entry in entries:
                match entry:
                    case {"name": str(name), "template": str(source)}:
                        templates[name] = source
        case Mapping() as named:
            templates.update({name: source for name, source in named.items() if isinstance(source, str)})
    return templates
