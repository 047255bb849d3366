"""genx kv-size: the command line of the KV-cache calculator."""

import json
from typing import TYPE_CHECKING

import typer

from genx.cli import kv_size_options as options
from genx.cli.layout import show
from genx.cli.output import Output
from genx.cli.terminal import Terminal
from genx.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from genx.kv_size.plan import Answer

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(cls=options.TextCommand)
def kv_size(
    context: typer.Context,
    models: options.Models = None,
    list_presets: options.ListPresets = False,
    hub: options.Hub = False,
    verify: options.Verify = False,
    layers: options.Layers = None,
    heads: options.Heads = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    value_dim: options.ValueDim = None,
    hidden_size: options.HiddenSize = None,
    window: options.Window = None,
    full_every: options.FullEvery = None,
    layer_types: options.LayerTypes = None,
    kv_lora_rank: options.KvLoraRank = None,
    rope_head_dim: options.RopeHeadDim = None,
    max_positions: options.MaxPositions = None,
    state_bytes: options.StateBytes = None,
    set_fields: options.Set = None,
    tokens: options.Tokens = None,
    batch: options.Batch = "1",
    mix: options.Mix = None,
    encoder_tokens: options.EncoderTokens = None,
    kv_dtype: options.KvDtypes = None,
    kv_dtype_k: options.KeyDtype = None,
    kv_dtype_v: options.ValueDtype = None,
    kv_group_size: options.GroupSize = None,
    state_dtype: options.StateDtype = "fp32",
    engine: options.EngineNames = "ideal",
    slots: options.Slots = None,
    ubatch: options.Ubatch = "512",
    block_size: options.BlockSize = "16",
    max_num_batched_tokens: options.BatchedTokens = "8192",
    tp: options.TensorParallel = "1",
    pp: options.PipelineParallel = "1",
    memory: options.MemorySize = None,
    weights: options.Weights = None,
    reserve: options.ReserveSize = "0",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    explain: options.Explain = False,
    chart: options.Chart = None,
    si: options.Si = False,
    ascii_only: options.Ascii = False,
) -> int:
    """How many bytes the KV cache of MODEL takes, and what fits into a memory.

    MODEL is a config.json, a checkpoint folder, a GGUF file, - for stdin, a preset (see --list), or with --hub an id
    of the Hugging Face hub; several make one table. No weights are read. Exit code 1: it does not fit into --memory.
    """
    # Typer gathers the values in context.params under the names above; kv_size_request reads them there.
    if as_json and as_csv:
        raise UsageError("--json and --csv are both given; allowed: one of them")
    terminal: Terminal = context.obj
    if list_presets:
        return _list(terminal, as_json=as_json)
    if verify:
        from genx.cli.kv_size_verify import verify_models

        return verify_models(terminal, context.params)
    from genx.cli.kv_size_request import read_questions
    from genx.kv_size.plan import answer

    answers = [answer(question) for question in read_questions(terminal, context.params)]
    _warn(terminal, answers)
    if as_json or as_csv:
        from genx.kv_size import report

        text = report.as_json(answers) if as_json else report.as_csv(answers)
    else:
        from genx.cli.kv_size_view import View

        text = View(terminal, si=si, ascii_only=ascii_only).text(answers, explain=explain, chart=chart)
    show(terminal, text)
    misfit = any(found.fit is not None and not found.fit.fits for found in answers)
    return ExitCode.FAILED if misfit else ExitCode.OK


def _list(terminal: Terminal, *, as_json: bool) -> int:
    from genx.kv_size.presets import SOURCE_KEY, find_preset, preset_names, read_preset

    found = []
    for name in preset_names():
        path = find_preset(name)
        config = read_preset(path) if path is not None else {}
        found.append({"name": name, "model_type": config.get("model_type"), "source": config.get(SOURCE_KEY)})
    output = Output(terminal)
    if as_json:
        output.write(json.dumps(found, indent=2) + "\n")
    else:
        width = max((len(str(preset["name"])) for preset in found), default=0)
        output.write("".join(f"{preset['name']:<{width}}  {preset['model_type']}\n" for preset in found))
    return ExitCode.OK


def _warn(terminal: Terminal, answers: "Sequence[Answer]") -> None:
    said: set[str] = set()
    for found in answers:
        for warning in found.warnings:
            if warning not in said:
                said.add(warning)
                terminal.say(f"genx: warning: {warning}")
