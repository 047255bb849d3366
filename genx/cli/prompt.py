"""Where the prompt comes from: the command line, a file, or stdin, as UTF-8 whatever the locale says."""

from pathlib import Path
from typing import BinaryIO

from genx.cli.requests import PromptRequest
from genx.cli.terminal import Terminal
from genx.errors import UsageError

_MAX_BYTES = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STDIN = "-"


def read_prompt(request: PromptRequest, terminal: Terminal) -> str:
    """The prompt's text. stdin is read only where neither PROMPT nor a file is given, or one of them is `-`.

    One leading byte-order mark and one final newline (LF or CRLF) of a file or stdin are dropped; everything else,
    backslashes and inner line ends too, stays as it is.

    Raises:
        UsageError: the file cannot be read, is too large, or is not UTF-8.
    """
    if request.text not in (None, _STDIN):
        assert request.text is not None
        return _checked(request.text)
    if request.file not in (None, _STDIN):
        assert request.file is not None
        return _decode(_read_file(request.file), f"the file {request.file}", request.keep_newline)
    if terminal.stdin_is_terminal:
        terminal.say("genx: reading the prompt from the terminal; Ctrl-D on a line of its own ends it")
    return _decode(_read(terminal.stdin, "stdin"), "stdin", request.keep_newline)


def _read_file(file: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            return _read(stream, f"the file {file}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the file {file} cannot be read: {reason}; give a text file in UTF-8") from error


def _read(stream: BinaryIO, name: str) -> bytes:
    content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{name} has more than {_MAX_BYTES:,} bytes; allowed: at most that many for a prompt")
    return content


def _decode(content: bytes, name: str, keep_newline: bool) -> str:
    skipped = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    try:
        text = content[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = skipped + error.start
        raise UsageError(
            f"{name} is not UTF-8: byte {offset} is 0x{content[offset]:02x}; convert it first, for instance by iconv"
        ) from error
    if keep_newline or not text.endswith("\n"):
        return text
    return text.removesuffix("\n").removesuffix("\r")


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"PROMPT is not UTF-8 from character {error.start} on; give UTF-8 text") from error
    return text
