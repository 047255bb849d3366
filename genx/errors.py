"""What can go wrong, each with the exit code it ends the command line with.

Every message says what was given, what is allowed and what to do.
"""

from collections.abc import Callable
from enum import IntEnum


class ExitCode(IntEnum):
    """How a genx process ends."""

    OK = 0
    FAILED = 1  # it could not be done, or does not fit
    USAGE = 2  # the command line asks for something that is not allowed
    SOME_ROWS_FAILED = 3
    INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as shells count


class GenxError(Exception):
    """The base of all errors that genx reports on purpose; its text is meant for a person."""

    exit_code = ExitCode.FAILED


class ConfigError(GenxError, ValueError):
    """A model configuration lacks a field, or a field has a value that no model can have."""


class CheckpointError(GenxError):
    """A checkpoint folder cannot be read as the model it claims to be."""


class TokenizerError(GenxError):
    """A tokenizer or chat template cannot be read, or cannot do what is asked."""


class GenerationError(GenxError, ValueError):
    """The model gave logits that no token can be chosen from."""


class UsageError(GenxError):
    """The command line asks for something that is not allowed."""

    exit_code = ExitCode.USAGE


class ArgumentError(UsageError, ValueError):
    """An argument has a value that is not allowed.

    The template names arguments in braces, so that each door spells them its own way: `{top_p}` reads `top_p`
    in Python and `--top-p` at the terminal. Other names in braces are looked up in `values`.

    >>> error = ArgumentError("{top_p} is {given}; allowed: 0 < {top_p} <= 1", given=7)
    >>> str(error)
    'top_p is 7; allowed: 0 < top_p <= 1'
    >>> error.render(lambda name: "--" + name.replace("_", "-"))
    '--top-p is 7; allowed: 0 < --top-p <= 1'
    """

    def __init__(self, template: str, **values: object) -> None:
        self._template = template
        self._values = values
        super().__init__(self.render(str))

    def render(self, spell: Callable[[str], str]) -> str:
        """The message with each argument's name given by `spell`."""
        return self._template.format_map(_Spelling(self._values, spell))


class _Spelling(dict[str, object]):
    def __init__(self, values: dict[str, object], spell: Callable[[str], str]) -> None:
        super().__init__(values)
        self._spell = spell

    def __missing__(self, name: str) -> str:
        return self._spell(name)


class GenxWarning(UserWarning):
    """Something a person should know about, though the work goes on."""
