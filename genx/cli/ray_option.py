"""`--ray [ADDRESS]` of genx run: an option whose value may be missing, which Typer does not have."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from genx.cli.commands import GroupedCommand

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        rich_help_panel="Files of prompts",
        help="Share rows out over a Ray cluster: HOST:PORT, auto, local; default: RAY_ADDRESS, else local.",
    ),
]

_RAY = "--ray"
_NO_ADDRESS = f"{_RAY}="
_END_OF_OPTIONS = "--"
_ADDRESS = re.compile(r"auto|local|[^\s/=]+:[0-9]+")


def is_ray_address(text: str) -> bool:
    """Whether this can be the address of a Ray cluster."""
    return _ADDRESS.fullmatch(text) is not None


def with_ray_value(arguments: Sequence[str]) -> list[str]:
    """The command line with `--ray=ADDRESS` for `--ray ADDRESS`, and `--ray=` where what follows is no address.

    >>> with_ray_value(["--ray", "10.0.0.1:6379", "--ray", "Say hello", "--", "--ray"])
    ['--ray=10.0.0.1:6379', '--ray=', 'Say hello', '--', '--ray']
    """
    end = arguments.index(_END_OF_OPTIONS) if _END_OF_OPTIONS in arguments else len(arguments)
    spelled: list[str] = []
    for argument in arguments[:end]:
        if spelled and spelled[-1] == _NO_ADDRESS and is_ray_address(argument):
            spelled[-1] += argument
        else:
            spelled.append(_NO_ADDRESS if argument == _RAY else argument)
    return [*spelled, *arguments[end:]]


class RayCommand(GroupedCommand):
    """A command that has the option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_ray_value(args))
