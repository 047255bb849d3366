"""The options of genx run that turn files of prompts into files of answers."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from genx.errors import ArgumentError

_FILES = "Files of prompts"

Input = Annotated[
    list[str] | None,
    typer.Option(
        "-i",
        "--input",
        metavar="PATH",
        rich_help_panel=_FILES,
        help="Answer every prompt of this file, folder or stdin (-): .jsonl, .csv, .tsv or a prompt a line, each "
        "also .gz; repeatable.",
    ),
]
OutputFile = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=_FILES, help="Write answers here (default: stdout)."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="jsonl|text|csv",
        rich_help_panel=_FILES,
        help="How answers are written (default: by the name of FILE, else jsonl).",
        autocompletion=lambda: ["jsonl", "text", "csv"],
    ),
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        "--input-format",
        metavar="txt|jsonl|csv|tsv|file",
        rich_help_panel=_FILES,
        help="How inputs are read (default: by their names); file: each as one prompt.",
        autocompletion=lambda: ["txt", "jsonl", "csv", "tsv", "file"],
    ),
]
Field = Annotated[
    str | None,
    typer.Option("--field", metavar="NAME", rich_help_panel=_FILES, help="The prompt's field (default: prompt)."),
]
PromptTemplate = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        rich_help_panel=_FILES,
        help='Make the prompt of a row\'s fields: "Summarise: {text}". A line of plain text is the field text.',
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="blank-line|REGEX",
        rich_help_panel=_FILES,
        help="What stands between the prompts of a text file (default: a line end).",
    ),
]
Samples = Annotated[
    str | None,
    typer.Option("--samples", metavar="N", rich_help_panel=_FILES, help="Answers to each prompt, each its own row."),
]
BatchSize = Annotated[
    str | None,
    typer.Option(
        "-b", "--batch-size", metavar="N", rich_help_panel=_FILES, help="At most this many rows at once (default: 32)."
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="BYTES|GiB",
        rich_help_panel=_FILES,
        help="What the rows' caches may take together (default: half of the free memory).",
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        rich_help_panel=_FILES,
        help="Make a row's text the same to the last bit whatever runs beside it; slower.",
    ),
]
VerifyBatch = Annotated[
    str | None,
    typer.Option(
        "--verify-batch",
        metavar="N",
        rich_help_panel=_FILES,
        help="Afterwards generate N rows again, alone, and report any that differ.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", rich_help_panel=_FILES, help="Go on with FILE where an earlier run of it ended."),
]
RetryErrors = Annotated[
    bool, typer.Option("--retry-errors", rich_help_panel=_FILES, help="With --resume: run failed rows again.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", rich_help_panel=_FILES, help="Start afresh though FILE exists; it is lost.")
]
Unordered = Annotated[
    bool, typer.Option("--unordered", rich_help_panel=_FILES, help="Write answers as they come, not in input order.")
]
Count = Annotated[
    bool,
    typer.Option(
        "--count",
        rich_help_panel=_FILES,
        help="Load no weights: count tokens, what does not fit, and the memory needed.",
    ),
]

_NAMES = (
    "output",
    "format",
    "input_format",
    "field",
    "template",
    "separator",
    "samples",
    "batch_size",
    "kv_memory",
    "batch_invariant",
    "verify_batch",
    "resume",
    "retry_errors",
    "overwrite",
    "unordered",
    "count",
    "ray",
)


def check_no_rows_options(values: Mapping[str, Any]) -> None:
    """Refuse options of files of prompts where none is given.

    Args:
        values: all options of genx run by the names of its parameters.

    Raises:
        ArgumentError: one is given.
    """
    given = next((name for name in _NAMES if values[name] not in (None, False)), None)
    if given is not None:
        raise ArgumentError(f"{{{given}}} is for files of prompts, and none is given; give one with {{input}}")
