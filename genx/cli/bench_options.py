"""The options of genx bench by name, help and group; those that genx run has too are its own."""

from typing import Annotated

import typer

_MODEL = "Model"
_SWEEP = "Sweep (lists and ranges: 1,2,8 or 0-4096+1024 or 128-1024*2)"
_RUN = "How a point runs"
_PEERS = "Beside it"
_OUTPUT = "Output"


def _text(*flags: str, metavar: str, panel: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        *flags, metavar=metavar, rich_help_panel=panel, help=text, show_default=False
    )
    return option


Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="PATH|NAME",
        envvar="GENX_MODEL",
        rich_help_panel=_MODEL,
        help="Checkpoint folder, or its name under $GENX_MODELS (default: storyteller, which genx carries).",
    ),
]
PromptTokens = Annotated[
    str | None,
    _text("-p", "--prompt-tokens", metavar="N,...", panel=_SWEEP, text="Prompt tokens of a row (default: 128,512)."),
]
NewTokens = Annotated[
    str,
    _text(
        "-g",
        "--new-tokens",
        "--gen-tokens",
        metavar="N,...",
        panel=_SWEEP,
        text="New tokens of a row; 0 measures the prompt alone (default: 64).",
    ),
]
Batch = Annotated[
    str, _text("-b", "--batch-size", metavar="N,...", panel=_SWEEP, text="Rows that run at once (default: 1).")
]
Depth = Annotated[
    str,
    _text(
        "-d",
        "--depth",
        metavar="N,...",
        panel=_SWEEP,
        text="Tokens that are in the cache before the clock starts (default: 0).",
    ),
]
Dtypes = Annotated[
    str,
    _text(
        "--dtype",
        metavar="NAME,...",
        panel=_SWEEP,
        text="auto, float32, bfloat16, float16 (default: auto, as genx run chooses).",
    ),
]
Threads = Annotated[
    str | None, _text("--threads", metavar="N,...", panel=_SWEEP, text="CPU threads (default: torch's choice).")
]
Quantize = Annotated[
    str,
    _text("--quantize", metavar="NAME,...", panel=_SWEEP, text="none, int8, int4: of the weights (default: none)."),
]
Repeats = Annotated[
    str, _text("-r", "--repeats", metavar="N", panel=_RUN, text="Runs of a point that count (default: 5).")
]
Warmup = Annotated[
    str | None,
    _text("--warmup", metavar="N", panel=_RUN, text="Runs before them (default: 2 to 5, until two are alike)."),
]
ForwardOnly = Annotated[
    bool,
    typer.Option("--forward-only", rich_help_panel=_RUN, help="The model alone: tokens are given, not chosen."),
]
PromptFile = Annotated[
    str | None,
    _text(
        "--prompt-file",
        metavar="FILE",
        panel=_RUN,
        text="Cut prompts from this text instead of drawing random tokens; without -p, all of it.",
    ),
]
Kernels = Annotated[
    str, _text("--kernels", metavar="NAME", panel=_RUN, text="auto, native, torch: operations (default: auto).")
]
Against = Annotated[
    list[str] | None,
    _text(
        "--against",
        metavar="PEER",
        panel=_PEERS,
        text="transformers, llama.cpp: measure it in turns with genx, and show the ratio; repeatable.",
    ),
]
Gguf = Annotated[
    str | None, _text("--gguf", metavar="FILE", panel=_PEERS, text="The same model for --against llama.cpp.")
]
Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--compare", metavar="A B", rich_help_panel=_PEERS, help="Measure nothing: compare two reports, B with A."
    ),
]
FailIfSlower = Annotated[
    str | None,
    _text(
        "--fail-if-slower",
        metavar="PERCENT",
        panel=_PEERS,
        text="With --compare: exit code 1 if a rate of B is significantly lower by more than this, such as 5%.",
    ),
]
Resume = Annotated[
    str | None,
    _text(
        "--resume",
        metavar="FILE",
        panel=_OUTPUT,
        text="Take points that are in this report already (-o json or jsonl) from there.",
    ),
]
Format = Annotated[
    str,
    _text("-o", "--output", metavar="table|md|csv|json|jsonl", panel=_OUTPUT, text="On stdout (default: table)."),
]
Chart = Annotated[
    bool | None,
    typer.Option(
        "--chart/--no-chart",
        rich_help_panel=_OUTPUT,
        help="Draw decode speed over context (default: with a table of several contexts).",
    ),
]
Plot = Annotated[
    str | None,
    _text("--plot", metavar="FILE", panel=_OUTPUT, text="Draw it into FILE.svg or FILE.png; needs genx[plot]."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", rich_help_panel=_OUTPUT, help="No bar on stderr.")]
