"""The options of genx kv-size by name, help and group."""

from typing import Annotated, Any

import typer

from genx.cli.commands import GroupedCommand

_MODEL = "Model"
_SIZES = "Sizes by hand (they override the model's)"
_REQUEST = "What is held"
_ENGINE = "By whose rule"
_MEMORY = "Does it fit"
_OUTPUT = "Output"


class TextCommand(GroupedCommand):
    """A command whose options arrive as text or flags and are handed on as they are.

    Typer builds a pydantic adapter for each option, which takes longer than everything that this command does.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "_runtime_param", parameter) is None:
                parameter._runtime_param = _AsGiven()
        return parameters


class _AsGiven:
    def coerce(self, value: Any, **_: Any) -> Any:
        return value


Models = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", hidden=True)]
ListPresets = Annotated[bool, typer.Option("--list", rich_help_panel=_MODEL, help="List the presets and exit.")]
Hub = Annotated[
    bool,
    typer.Option("--hub", rich_help_panel=_MODEL, help="Fetch config.json of a MODEL that is a Hugging Face id."),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", rich_help_panel=_MODEL, help="Load the folder, generate, and compare with real bytes."),
]


def _text(flag: str, metavar: str, panel: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar=metavar, rich_help_panel=panel, help=text, show_default=False
    )
    return option


Layers = Annotated[str | None, _text("--layers", "N", _SIZES, "Layers.")]
Heads = Annotated[str | None, _text("--heads", "N", _SIZES, "Attention heads.")]
KvHeads = Annotated[str | None, _text("--kv-heads", "N", _SIZES, "Key/value heads.")]
HeadDim = Annotated[str | None, _text("--head-dim", "N", _SIZES, "Size of a head.")]
ValueDim = Annotated[str | None, _text("--value-dim", "N", _SIZES, "Size of a head's values, if another.")]
HiddenSize = Annotated[str | None, _text("--hidden-size", "N", _SIZES, "Hidden size.")]
Window = Annotated[str | None, _text("--window", "N|none", _SIZES, "Sliding window.")]
FullEvery = Annotated[str | None, _text("--full-every", "N", _SIZES, "Each N-th layer has no window; 0: each has.")]
LayerTypes = Annotated[
    str | None, _text("--layer-types", "KIND*N,...", _SIZES, "Kinds in order, such as (sliding*5,full)*8.")
]
KvLoraRank = Annotated[str | None, _text("--kv-lora-rank", "N", _SIZES, "Size of MLA's latent.")]
RopeHeadDim = Annotated[str | None, _text("--rope-head-dim", "N", _SIZES, "Rotary values beside MLA's latent.")]
MaxPositions = Annotated[str | None, _text("--max-positions", "N", _SIZES, "The model's context.")]
StateBytes = Annotated[str | None, _text("--state-bytes", "BYTES", _SIZES, "Recurrent state of one sequence.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", rich_help_panel=_SIZES, help="Any field of config.json; repeatable."),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--tokens",
        metavar="T,...",
        rich_help_panel=_REQUEST,
        help="Tokens of each sequence; 128k is 131072 (default: the model's context).",
    ),
]
Batch = Annotated[
    str,
    typer.Option(
        "-b", "--batch", metavar="B,...", rich_help_panel=_REQUEST, help="Sequences (default: 1).", show_default=False
    ),
]
Mix = Annotated[str | None, _text("--mix", "NxT,...", _REQUEST, "Sequences of different lengths: 20x8k,4x128k.")]
EncoderTokens = Annotated[
    str | None, _text("--encoder-tokens", "N", _REQUEST, "Length of the encoder's output (default: its largest).")
]
KvDtypes = Annotated[
    str | None,
    _text("--kv-dtype", "TYPE,...", _REQUEST, "Element type of the cache (default: the model's of 16 or 32 bits)."),
]
KeyDtype = Annotated[str | None, _text("--kv-dtype-k", "TYPE", _REQUEST, "Element type of keys.")]
ValueDtype = Annotated[str | None, _text("--kv-dtype-v", "TYPE", _REQUEST, "Element type of values.")]
GroupSize = Annotated[
    str | None, _text("--kv-group-size", "N", _REQUEST, "Elements that share a scale, of int8 and int4 (default: 32).")
]
StateDtype = Annotated[
    str, _text("--state-dtype", "TYPE", _REQUEST, "Element type of recurrent states (default: fp32).")
]
EngineNames = Annotated[
    str,
    _text("--engine", "NAME,...", _ENGINE, "ideal (the floor, the default), genx, hf, llama.cpp, vllm or full."),
]
Slots = Annotated[
    str | None,
    _text("--slots", "N", _ENGINE, "llama.cpp: sequences that share --tokens (default: 1; a batch has one each)."),
]
Ubatch = Annotated[str, _text("--ubatch", "N", _ENGINE, "llama.cpp: tokens a step (default: 512).")]
BlockSize = Annotated[str, _text("--block-size", "N", _ENGINE, "vLLM: tokens a block (default: 16).")]
BatchedTokens = Annotated[str, _text("--max-num-batched-tokens", "N", _ENGINE, "vLLM: tokens a step (default: 8192).")]
TensorParallel = Annotated[str, _text("--tp", "N", _ENGINE, "GPUs that share each layer; sizes are then of one GPU.")]
PipelineParallel = Annotated[
    str, _text("--pp", "N", _ENGINE, "GPUs that share the layers; sizes are then of the fullest.")
]
MemorySize = Annotated[
    str | None,
    _text(
        "--memory", "SIZE|NxSIZE", _MEMORY, "Memory to fit into, such as 24GiB or 2x24GiB; exit 1 if it is too small."
    ),
]
Weights = Annotated[
    str | None,
    _text(
        "--weights",
        "SIZE|NxTYPE|none",
        _MEMORY,
        "Bytes, or parameters x type such as 8.03Bxbf16 (default: auto, measured of a folder or GGUF file).",
    ),
]
ReserveSize = Annotated[str, _text("--reserve", "SIZE|P%", _MEMORY, "Memory kept free (default: 0).")]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Print a JSON array.")]
Csv = Annotated[bool, typer.Option("--csv", rich_help_panel=_OUTPUT, help="Print CSV.")]
Explain = Annotated[bool, typer.Option("--explain", rich_help_panel=_OUTPUT, help="Show all of the working.")]
Chart = Annotated[
    bool | None,
    typer.Option(
        "--chart/--no-chart",
        rich_help_panel=_OUTPUT,
        help="Draw the cache against the context (default: with --memory and one model).",
    ),
]
Si = Annotated[bool, typer.Option("--si", rich_help_panel=_OUTPUT, help="Decimal units: GB instead of GiB.")]
Ascii = Annotated[bool, typer.Option("--ascii", rich_help_panel=_OUTPUT, help="No characters beyond ASCII.")]
