"""genx convert: a GGUF file or a folder, written as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from genx.cli.commands import GroupedCommand
from genx.cli.loading import find_model
from genx.cli.output import Output
from genx.cli.status import Status, forwarded_warnings
from genx.cli.terminal import Terminal
from genx.engine.arithmetic import QUANTIZE, check_arithmetic
from genx.engine.device import DTYPES, check_device_and_dtype
from genx.errors import ArgumentError, ExitCode

Floats = Annotated[
    str,
    typer.Option("--dtype", metavar="|".join(DTYPES), help="Of the floats that are written; auto: as they are stored."),
]
Blocks = Annotated[
    str,
    typer.Option(
        "--quantize", metavar="|".join(QUANTIZE), help="Write the linear layers' weights in blocks of 8 or 4 bits."
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(cls=GroupedCommand)
def convert(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", hidden=True)],
    folder: Annotated[Path, typer.Argument(metavar="DST", hidden=True)],
    dtype: Floats = "auto",
    quantize: Blocks = "none",
) -> int:
    """Write SRC, a GGUF file or a folder, to the new folder DST as safetensors that transformers reads too.

    With --dtype auto floats keep their type, and quantised blocks become float32, which holds them exactly. With
    --quantize DST is for genx alone, which runs it as SRC with --quantize, from fewer bytes. DST appears when it is
    whole; after an interruption the same command goes on with what was written. stdout gets its path.
    """
    check_device_and_dtype("auto", dtype)
    check_arithmetic("auto", "auto", quantize, "auto")
    if quantize != "none" and dtype != "auto":
        raise ArgumentError(
            "{quantize} {blocks} and {dtype} {floats} are both given; allowed: one of them; what is not "
            "quantised stays as it is stored",
            blocks=quantize,
            floats=dtype,
        )
    terminal: Terminal = context.obj
    path = find_model(source, terminal)
    with Status(terminal) as status, forwarded_warnings(status.warn):
        status.show(f"reading {path.name}")
        from genx.checkpoint import convert_model  # imports torch

        written = convert_model(
            path,
            folder,
            None if dtype == "auto" else dtype,
            quantize=None if quantize == "none" else quantize,
            progress=lambda done, total: status.show(f"writing {folder.name}", done, total),
        )
    Output(terminal).write(f"{written}\n")
    return ExitCode.OK
