"""The options of genx run by name, help and group, and the reading of their values.

Values arrive as text and are read here, so that every refusal names the flag, the value and what is allowed.
"""

import re
from typing import Annotated

import typer

from genx.engine.arithmetic import KERNELS, QUANTIZE
from genx.engine.device import DEVICES, DTYPES
from genx.engine.prompt import SIDES
from genx.errors import ArgumentError

_PROMPT = "Prompt"
_MODEL = "Model"
_SAMPLING = "Sampling"
_LENGTH = "Length and stopping"
_OUTPUT = "Output"

PromptText = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", hidden=True),
]
PromptFile = Annotated[
    str | None,
    typer.Option("-f", "--file", metavar="FILE", rich_help_panel=_PROMPT, help="Read the prompt from this file."),
]
System = Annotated[
    str | None,
    typer.Option(
        "-s", "--system", "--system-prompt", metavar="TEXT", rich_help_panel=_PROMPT, help="The chat's system message."
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", rich_help_panel=_PROMPT, help="Give the prompt as it is, without the chat template.")
]
ParseSpecial = Annotated[
    bool | None,
    typer.Option(
        "--parse-special/--no-parse-special",
        rich_help_panel=_PROMPT,
        help="Whether control tokens spelled in the prompt act as such (default: only with --raw or without a chat "
        "template).",
    ),
]
KeepNewline = Annotated[
    bool,
    typer.Option("--keep-newline", rich_help_panel=_PROMPT, help="Keep the final newline of stdin or FILE."),
]
Ids = Annotated[
    str | None,
    typer.Option(
        "--ids", metavar="ID,ID,...", rich_help_panel=_PROMPT, help="Token ids instead of text; needs no tokenizer."
    ),
]
Mask = Annotated[
    str | None,
    typer.Option(
        "--attention-mask",
        metavar="0,1,...",
        rich_help_panel=_PROMPT,
        help="0 hides a prompt token, 1 shows it.",
    ),
]
Truncate = Annotated[
    str | None,
    typer.Option(
        "--truncate",
        metavar="|".join(SIDES),
        rich_help_panel=_PROMPT,
        help="Cut a prompt longer than the context on this side instead of refusing it.",
        autocompletion=lambda: list(SIDES),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="PATH|NAME|ID",
        envvar="GENX_MODEL",
        rich_help_panel=_MODEL,
        help="Checkpoint folder or GGUF file, a name that genx models lists, or ORG/NAME[@REVISION] of the Hugging "
        "Face hub (default: storyteller, which genx carries and which tells small stories).",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="|".join(DEVICES),
        rich_help_panel=_MODEL,
        help="auto: CUDA where there is one, else the CPU.",
        autocompletion=lambda: list(DEVICES),
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="|".join(DTYPES),
        rich_help_panel=_MODEL,
        help="Of the arithmetic; auto: the stored one on a GPU; on a CPU float32, with weights as they are stored.",
        autocompletion=lambda: list(DTYPES),
    ),
]
Quantize = Annotated[
    str,
    typer.Option(
        "--quantize",
        metavar="|".join(QUANTIZE),
        rich_help_panel=_MODEL,
        help="Hold the weights in 8 or 4 bits: less memory, faster, not quite the same text; on a CPU.",
        autocompletion=lambda: list(QUANTIZE),
    ),
]
Kernels = Annotated[
    str,
    typer.Option(
        "--kernels",
        metavar="|".join(KERNELS),
        rich_help_panel=_MODEL,
        help="Operations on a CPU; auto: native ones where they are compiled.",
        autocompletion=lambda: list(KERNELS),
    ),
]
Threads = Annotated[
    str | None,
    typer.Option("--threads", metavar="N", rich_help_panel=_MODEL, help="CPU threads (default: torch's choice)."),
]
TensorParallel = Annotated[
    str | None,
    typer.Option(
        "--tensor-parallel",
        "--tp",
        metavar="N",
        rich_help_panel=_MODEL,
        help="Divide the model among N CUDA devices, or N processes on a CPU (default: 1).",
    ),
]
Sample = Annotated[
    bool | None,
    typer.Option(
        "--sample/--greedy",
        "--do-sample/--no-do-sample",
        rich_help_panel=_SAMPLING,
        help="Draw each token, or take the most likely one (default: greedy, unless --top-k, --top-p or a "
        "--temperature other than 0 is given).",
    ),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        "--temperature",
        "--temp",
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="Sharpen (below 1) or flatten (above 1) the distribution; 0 alone is greedy (default: 1).",
    ),
]
TopK = Annotated[
    str | None,
    typer.Option("--top-k", metavar="K", rich_help_panel=_SAMPLING, help="Draw from the K most likely tokens."),
]
TopP = Annotated[
    str | None,
    typer.Option(
        "--top-p",
        metavar="P",
        rich_help_panel=_SAMPLING,
        help="Draw from the most likely tokens that together reach probability P; not with --top-k.",
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(
        "--seed", metavar="N", rich_help_panel=_SAMPLING, help="Make the draws repeatable (default: drawn and shown)."
    ),
]
CheckpointSampling = Annotated[
    bool,
    typer.Option(
        "--checkpoint-sampling",
        rich_help_panel=_SAMPLING,
        help="Use the sampling values of generation_config.json where no flag is given.",
    ),
]
MaxNewTokens = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--max-new-tokens",
        "--max-tokens",
        metavar="N",
        rich_help_panel=_LENGTH,
        help="At most this many new tokens (default: 256).",
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", rich_help_panel=_LENGTH, help="End before this text; repeatable, and never printed."
    ),
]
EosTokenId = Annotated[
    list[str] | None,
    typer.Option(
        "--eos-token-id",
        metavar="ID",
        rich_help_panel=_LENGTH,
        help="End at this token instead of the checkpoint's; repeatable.",
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", rich_help_panel=_LENGTH, help="Go on past the checkpoint's end tokens.")
]
PadTokenId = Annotated[
    str | None,
    typer.Option(
        "--pad-token-id", metavar="ID", rich_help_panel=_LENGTH, help="Fills rows that have ended (default: the end)."
    ),
]
MaxTime = Annotated[
    str | None,
    typer.Option("--max-time", metavar="SECONDS", rich_help_panel=_LENGTH, help="End after this time."),
]
UseCache = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        "--use-cache/--no-use-cache",
        rich_help_panel=_LENGTH,
        help="Keep keys and values between steps: the same text, faster (default: cache).",
    ),
]
Special = Annotated[bool, typer.Option("--special", rich_help_panel=_OUTPUT, help="Show special tokens in the text.")]
Echo = Annotated[
    bool, typer.Option("--echo", rich_help_panel=_OUTPUT, help="Print the prompt too, as the model reads it.")
]
NoStream = Annotated[
    bool, typer.Option("--no-stream", rich_help_panel=_OUTPUT, help="Print the text at the end, all at once.")
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Print one JSON object instead of the text.")
]
Stats = Annotated[
    bool, typer.Option("--stats", rich_help_panel=_OUTPUT, help="Print the summary on stderr off a terminal too.")
]
Explain = Annotated[
    bool,
    typer.Option("--explain", rich_help_panel=_OUTPUT, help="Print every effective setting and its origin on stderr."),
]
Profiled = Annotated[
    bool,
    typer.Option("--profile", rich_help_panel=_OUTPUT, help="Print on stderr where the time went, phase by phase."),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", rich_help_panel=_OUTPUT, help="No live status and no summary, unless --stats."),
]


# At most as many digits as Python converts without a limit of its own.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,4000}")


def whole_number(name: str, text: str | None) -> int | None:
    """Read the value of an option as a whole number; None where it is not given.

    Raises:
        ArgumentError: it is none.
    """
    if text is None:
        return None
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ArgumentError("{" + name + "} is {given!r}; allowed: a whole number", given=text)
    return int(text)


def number(name: str, text: str | None) -> float | None:
    """Read the value of an option as a number, None where it is not given.

    `nan` and `inf` are read too, for the rules of the argument to refuse.

    Raises:
        ArgumentError: it is none.
    """
    if text is None:
        return None
    try:
        if not text.isascii() or "_" in text:  # which float takes
            raise ValueError
        return float(text)
    except ValueError:
        raise ArgumentError("{" + name + "} is {given!r}; allowed: a number", given=text) from None


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read at least one whole number, separated by commas or spaces.

    Raises:
        ArgumentError: there is none, or something that is none.
    """
    parts = re.split(r"\s*,\s*|\s+", text.strip())
    if not all(_WHOLE_NUMBER.fullmatch(part) for part in parts):
        raise ArgumentError("{" + name + "} is {given!r}; allowed: whole numbers with commas between them", given=text)
    return tuple(map(int, parts))
