"""genx bench: the command line of measured runs."""

from typing import Any

import typer

from genx.cli import bench_options, options
from genx.cli.bench_request import read_comparison, read_request
from genx.cli.commands import GroupedCommand

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(cls=GroupedCommand)
def bench(
    context: typer.Context,
    model: bench_options.Model = None,
    device: options.Device = "auto",
    prompt_tokens: bench_options.PromptTokens = None,
    new_tokens: bench_options.NewTokens = "64",
    batch_size: bench_options.Batch = "1",
    depth: bench_options.Depth = "0",
    dtype: bench_options.Dtypes = "auto",
    threads: bench_options.Threads = None,
    quantize: bench_options.Quantize = "none",
    repeats: bench_options.Repeats = "5",
    warmup: bench_options.Warmup = None,
    cache: options.UseCache = None,
    sample: options.Sample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    forward_only: bench_options.ForwardOnly = False,
    prompt_file: bench_options.PromptFile = None,
    kernels: bench_options.Kernels = "auto",
    against: bench_options.Against = None,
    gguf: bench_options.Gguf = None,
    compare: bench_options.Compare = None,
    fail_if_slower: bench_options.FailIfSlower = None,
    resume: bench_options.Resume = None,
    output: bench_options.Format = "table",
    chart: bench_options.Chart = None,
    plot: bench_options.Plot = None,
    quiet: bench_options.Quiet = False,
) -> int:
    """Measure how fast a model runs here: the very loop of genx run, in a process of its own for each point.

    Prompts are random tokens, new ones for each repeat, and no token ends a text early. Exit code 1: a point failed,
    which is a row of the result like the others.
    """
    # Typer gathers the values in context.params under the names above; bench_request reads them there.
    given = _given(context)
    if compare is not None or fail_if_slower is not None:
        from genx.cli.bench_compare import show_comparison

        return show_comparison(context.obj, read_comparison(context.params, given))
    request = read_request(context.params, given)

    from genx.cli.bench_session import run_bench  # reads files and starts processes; a usage error should do neither

    return run_bench(context.obj, request)


def _given(context: typer.Context) -> dict[str, Any]:
    """What was typed, by the flag."""
    typed = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            turned_off = value is False and parameter.secondary_opts
            typed[(parameter.secondary_opts if turned_off else parameter.opts)[-1]] = value
    return typed
