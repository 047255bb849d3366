"""genx models: the model that genx carries, what is in the models folder, and the architectures that genx has."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from genx.checkpoint import EMBEDDED_NAME, embedded_model, installed_models, models_folder
from genx.checkpoint.gguf.config import GGUF_MODEL_TYPES
from genx.cli.commands import GroupedCommand
from genx.cli.inspect_facts import Inspection
from genx.cli.layout import Layout
from genx.cli.output import Output
from genx.cli.terminal import Terminal
from genx.errors import ExitCode, GenxError
from genx.kv_size.quantities import human_bytes
from genx.messages import printable
from genx.models.registry import ARCHITECTURES

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_UNKNOWN = "-"


@app.command(cls=GroupedCommand)
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List the model in genx, those in the models folder ($GENX_MODELS, else in the cache), and genx's architectures.

    The name of a model is what -m takes. No weights are loaded.
    """
    terminal: Terminal = context.obj
    installed = installed_models()
    found = [_describe(name, path, terminal, "models folder") for name, path in installed.items()]
    if EMBEDDED_NAME not in installed:  # which would be what that name means
        found.insert(0, _describe(EMBEDDED_NAME, embedded_model(), terminal, "genx"))
    known = {name: name in GGUF_MODEL_TYPES for name in sorted(ARCHITECTURES)}
    if as_json:
        architectures = [{"architecture": name, "gguf": as_gguf} for name, as_gguf in known.items()]
        listing = {"folder": str(models_folder()), "models": found, "architectures": architectures}
        text = json.dumps(listing, indent=2, ensure_ascii=False) + "\n"
    else:
        layout = Layout(terminal)
        text = f"models in genx and in {printable(models_folder())}{'' if installed else ' (none yet)'}\n"
        titles = ["name", "architecture", "parameters", "dtype", "size", "context", "place"]
        text += layout.table_or_lines(titles, [_row(model) for model in found], left=2)
        rows = [[name, "yes" if as_gguf else "no"] for name, as_gguf in known.items()]
        text += f"\n{layout.table_or_lines(['architecture', 'read from GGUF'], rows, left=2)}"
    Output(terminal).write(text)
    return ExitCode.OK


def _describe(name: str, path: Path, terminal: Terminal, place: str) -> dict[str, Any]:
    model = Inspection(path)
    described: dict[str, Any] = {"name": name, "place": place, "path": str(path), "format": model.format}
    facts: dict[str, Callable[[], Any]] = {
        "architecture": lambda: model.model_type,
        "parameters": lambda: model.parameters,
        "dtype": lambda: model.stored_as[0].dtype,
        "size_bytes": lambda: model.size_bytes,
        "context": lambda: model.context,
    }
    for fact, read in facts.items():
        try:
            described[fact] = read()
        except (GenxError, OSError, IndexError) as error:
            described[fact] = None
            if "error" not in described:
                described["error"] = str(error)
                terminal.say(f"genx: warning: {name}: {error}")
    return described


def _row(model: Mapping[str, Any]) -> list[str]:
    def number(key: str) -> str:
        return _UNKNOWN if model[key] is None else f"{model[key]:,}"

    size = model["size_bytes"]
    cells = [
        model["name"], model["architecture"] or _UNKNOWN, number("parameters"), model["dtype"] or _UNKNOWN,
        _UNKNOWN if size is None else human_bytes(size), number("context"), model["place"],
    ]  # fmt: skip
    return [printable(cell) for cell in cells]
