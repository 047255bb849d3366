"""genx run: the command line of one prompt."""

import typer

from genx.checkpoint import embedded_model
from genx.cli import options, rows_options
from genx.cli.options import number, whole_number, whole_numbers
from genx.cli.ray_option import Ray, RayCommand
from genx.cli.requests import ModelRequest, OutputRequest, PromptRequest, check_one_process, check_prompt_request
from genx.cli.rows_options import check_no_rows_options
from genx.engine.arithmetic import check_arithmetic
from genx.engine.device import check_device_and_dtype, check_processes, check_threads
from genx.engine.prompt import check_truncate
from genx.engine.settings import RequestedSettings, check_requested
from genx.errors import ArgumentError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(cls=RayCommand)
def run(
    context: typer.Context,
    prompt: options.PromptText = None,
    file: options.PromptFile = None,
    system: options.System = None,
    raw: options.Raw = False,
    parse_special: options.ParseSpecial = None,
    keep_newline: options.KeepNewline = False,
    ids: options.Ids = None,
    attention_mask: options.Mask = None,
    truncate: options.Truncate = None,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = "none",
    kernels: options.Kernels = "auto",
    threads: options.Threads = None,
    tensor_parallel: options.TensorParallel = None,
    sample: options.Sample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    checkpoint_sampling: options.CheckpointSampling = False,
    max_new_tokens: options.MaxNewTokens = None,
    stop: options.Stop = None,
    eos_token_id: options.EosTokenId = None,
    ignore_eos: options.IgnoreEos = False,
    pad_token_id: options.PadTokenId = None,
    max_time: options.MaxTime = None,
    cache: options.UseCache = None,
    special: options.Special = False,
    echo: options.Echo = False,
    no_stream: options.NoStream = False,
    json: options.Json = False,
    stats: options.Stats = False,
    explain: options.Explain = False,
    profile: options.Profiled = False,
    quiet: options.Quiet = False,
    input: rows_options.Input = None,
    output: rows_options.OutputFile = None,
    format: rows_options.Format = None,
    input_format: rows_options.InputFormat = None,
    field: rows_options.Field = None,
    template: rows_options.PromptTemplate = None,
    separator: rows_options.Separator = None,
    samples: rows_options.Samples = None,
    batch_size: rows_options.BatchSize = None,
    kv_memory: rows_options.KvMemory = None,
    batch_invariant: rows_options.BatchInvariant = False,
    verify_batch: rows_options.VerifyBatch = None,
    resume: rows_options.Resume = False,
    retry_errors: rows_options.RetryErrors = False,
    overwrite: rows_options.Overwrite = False,
    unordered: rows_options.Unordered = False,
    count: rows_options.Count = False,
    ray: Ray = None,
) -> int:
    """Generate text from a prompt and stream it to stdout, or answer files of prompts row by row (-i).

    PROMPT is read from stdin if it is - or absent and no --file, --ids or --input is given. All but the text goes to
    stderr, which off a terminal is silent unless something is wrong or --stats is given.
    """
    values = dict(locals())
    requested = RequestedSettings(
        max_new_tokens=whole_number("max_new_tokens", max_new_tokens),
        do_sample=sample,
        temperature=number("temperature", temperature),
        top_k=whole_number("top_k", top_k),
        top_p=number("top_p", top_p),
        seed=whole_number("seed", seed),
        use_cache=cache,
        eos_token_ids=tuple(
            token_id for text in eos_token_id or () for token_id in whole_numbers("eos_token_id", text)
        ),
        pad_token_id=whole_number("pad_token_id", pad_token_id),
        ignore_eos=ignore_eos,
        stop=tuple(stop or ()),
        max_time=number("max_time", max_time),
        checkpoint_sampling=checkpoint_sampling,
    )
    check_requested(requested)
    asked = PromptRequest(
        text=prompt,
        file=file,
        ids=None if ids is None else whole_numbers("input_ids", ids),
        system=system,
        attention_mask=None if attention_mask is None else whole_numbers("attention_mask", attention_mask),
        raw=raw,
        parse_special=parse_special,
        keep_newline=keep_newline,
        truncate=truncate,
    )
    check_truncate(truncate)
    check_prompt_request(asked)
    check_device_and_dtype(device, dtype)
    check_arithmetic(device, dtype, quantize, kernels)
    threads_asked = whole_number("threads", threads)
    check_threads(threads_asked)
    processes = whole_number("tensor_parallel", tensor_parallel)
    check_processes(processes, device)
    wanted = ModelRequest(
        str(embedded_model()) if model is None else model,
        device,
        dtype,
        threads_asked,
        quantize,
        kernels,
        processes or 1,
    )
    check_one_process(wanted)
    shown = OutputRequest(special, echo, not no_stream, json, stats, explain, profile, quiet)
    if input is not None:
        if wanted.tensor_parallel > 1:
            raise ArgumentError("{input} and {tensor_parallel} are both given; allowed: one of them, so far")
        from genx.cli.rows_request import read_rows_request

        rows = read_rows_request(values)
        from genx.cli.rows import run_rows

        return run_rows(context.obj, wanted, asked, requested, shown, rows)
    check_no_rows_options(values)

    from genx.cli.session import run_prompt  # reads files and imports torch; a usage error should do neither

    return run_prompt(context.obj, wanted, asked, requested, shown)
