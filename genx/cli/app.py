"""The program: its commands by name, and the one place where an error becomes a line and an exit code."""

import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from genx import __version__
from genx.cli.commands import settle_flags
from genx.cli.flags import spell_flag
from genx.cli.output import detach
from genx.cli.terminal import Terminal
from genx.errors import ArgumentError, ExitCode, GenxError

# Each command is a Typer app in its own module, imported only when it is chosen.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("genx.cli.run", "Generate text from a prompt and stream it."),
    "bench": ("genx.cli.bench", "Measure how fast a model runs on this machine."),
    "models": ("genx.cli.models", "List the models that are here, and the architectures that genx has."),
    "inspect": ("genx.cli.inspect", "Describe a model without loading its weights."),
    "convert": ("genx.cli.convert", "Write a GGUF file or a folder as a Hugging Face folder."),
    "kv-size": ("genx.cli.kv_size", "Compute the memory of the KV cache from a configuration."),
}
_COMPLETION_VARIABLE = "_GENX_COMPLETE"


class LazyGroup(TyperGroup):
    """Commands that stand here by name and one line of help until one of them is chosen."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def get_params(self, ctx: Any) -> list[Any]:
        return settle_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or name is None:
            return name, command, rest
        module, _ = COMMANDS[name]
        return name, typer.main.get_command(import_module(module).app), rest


# Plain help: it starts in half the time of Rich's, and reads the same in a pipe, in a narrow window and with COLUMNS=0.
app = typer.Typer(
    name="genx",
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"genx {__version__}")
        raise typer.Exit


@app.callback()
def genx(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Text generation for the terminal."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def program(arguments: Sequence[str], terminal: Terminal) -> int:
    """Run the command line; whatever goes wrong ends as plain lines on stderr and an exit code, which is returned."""
    try:
        return _invoke(arguments, terminal)
    except GenxError as error:
        message = error.render(spell_flag) if isinstance(error, ArgumentError) else str(error)
        terminal.say(f"genx: error: {message}")
        return error.exit_code
    except typer.TyperException as error:
        return _report_usage(error, arguments, terminal)
    except KeyboardInterrupt:
        if terminal.stderr_is_terminal:
            terminal.say("")  # leaves the line on which the terminal shows ^C
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        detach(terminal.stdout)
        return ExitCode.OK
    except OSError as error:  # for instance a full disk under what is redirected
        detach(terminal.stdout)
        terminal.say(f"genx: error: {error.strerror or error}")
        return ExitCode.FAILED
    except Exception as error:
        if terminal.environment.get("GENX_DEBUG") == "1":
            traceback.print_exc(file=terminal.stderr)
        terminal.say(
            f"genx: error: unexpected {type(error).__name__}: {error}; this is a bug, GENX_DEBUG=1 shows where"
        )
        return ExitCode.FAILED


def _invoke(arguments: Sequence[str], terminal: Terminal) -> int:
    command = typer.main.get_command(app)
    if terminal.environment.get(_COMPLETION_VARIABLE):
        command.main(args=[], prog_name="genx", complete_var=_COMPLETION_VARIABLE)
    try:
        with command.make_context("genx", list(arguments), obj=terminal) as context:
            status = command.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code
    return ExitCode.OK if status is None else int(status)


def _report_usage(error: typer.TyperException, arguments: Sequence[str], terminal: Terminal) -> int:
    message = " ".join(error.format_message().split())
    terminal.say(f"genx: error: {message[:1].lower()}{message[1:]}")
    chosen = [name for name in arguments[:1] if name in COMMANDS]
    terminal.say(f"see {' '.join(['genx', *chosen])} --help")
    return error.exit_code
