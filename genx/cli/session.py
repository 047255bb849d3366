"""One run of a prompt, from the checkpoint's folder to the last line on stderr."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from genx.checkpoint import GenerationDefaults, open_source, read_generation_defaults
from genx.checkpoint.read_ahead import read_ahead
from genx.cli.flags import spell_flag
from genx.cli.interrupt import Interruption
from genx.cli.loading import find_model, import_torch, load_model, load_tokenizer, name_of, read_config, team_of
from genx.cli.output import Output
from genx.cli.profile import Profile
from genx.cli.prompt import read_prompt
from genx.cli.requests import ModelRequest, OutputRequest, PromptRequest
from genx.cli.status import Status, forwarded_warnings, print_rows
from genx.cli.summary import CHAT_TEMPLATE, PLAIN_TEXT, TOKEN_IDS, ModelFacts, explain_rows, summary_rows
from genx.cli.terminal import Terminal
from genx.engine.prompt import (
    Prompt,
    check_attention_mask,
    check_prompt_ids,
    encode_prompt,
    fit_prompt,
    uses_chat_template,
)
from genx.engine.result import as_json_line, result_object
from genx.engine.settings import GenerationSettings, Origin, RequestedSettings, resolve_settings
from genx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from genx.engine.loading import LoadedModel
    from genx.engine.stream import Summary, TextDecoder
    from genx.tokenization import Tokenizer


def run_prompt(
    terminal: Terminal,
    wanted: ModelRequest,
    asked: PromptRequest,
    requested: RequestedSettings,
    output: OutputRequest,
) -> int:
    """Run one prompt and return the exit code.

    Raises:
        GenxError: it cannot be run; nothing is on stdout then.
        BrokenPipeError: whoever read stdout has gone.
    """
    profile = Profile(terminal.clock if output.profile else None, terminal.started)
    folder = find_model(wanted.model, terminal)
    read_ahead(folder)
    defaults = read_generation_defaults(folder)
    settings = resolve_settings(requested, defaults, lambda: secrets.randbits(32))
    text = read_prompt(asked, terminal) if asked.ids is None else None
    profile.mark("command line and prompt")
    with (
        Status(terminal, shown=not output.quiet) as status,
        forwarded_warnings(status.warn),
        team_of(wanted, terminal) as team,
    ):
        status.show(f"loading {name_of(folder)}")
        tokenizer = load_tokenizer(folder, required=asked.ids is None)
        profile.mark("tokenizer")
        import_torch()
        profile.mark("import of torch")
        prompt = _prepare_prompt(folder, tokenizer, asked, text, defaults)
        loaded = load_model(folder, wanted, status, team)
        profile.mark("weights")
        session = _Session(terminal, status, tokenizer, loaded, prompt, settings, output)
        facts = _facts(loaded, folder, wanted, defaults, session.mode(asked))
        _announce(status, settings, prompt, asked)
        if output.explain:
            status.hide()
            print_rows(terminal, explain_rows(settings, facts, asked, prompt.ids))
        summary = session.run()
    profile.mark_parts(
        "prompt, to the first token", summary.ttft or 0.0, f"{max(len(summary.ids) - 1, 0):,} more tokens"
    )
    if output.stats or (terminal.stderr_is_terminal and not output.quiet):
        if terminal.stdout_is_terminal and terminal.stderr_is_terminal:
            terminal.say("")
        print_rows(terminal, summary_rows(summary, settings, facts))
    if output.profile:
        print_rows(terminal, profile.rows())
    if summary.error is not None:
        raise summary.error
    return ExitCode.INTERRUPTED if summary.finish_reason == "interrupted" else ExitCode.OK


class _Session:
    """A loaded model with its prompt, and the way of its text to stdout."""

    def __init__(
        self,
        terminal: Terminal,
        status: Status,
        tokenizer: "Tokenizer | None",
        loaded: "LoadedModel",
        prompt: Prompt,
        settings: GenerationSettings,
        output: OutputRequest,
    ) -> None:
        self._terminal = terminal
        self._status = status
        self._tokenizer = tokenizer
        self._loaded = loaded
        self._prompt = prompt
        self._settings = settings
        self._output = output
        self._text = Output(terminal)
        self._has_begun = False

    def mode(self, asked: PromptRequest) -> str:
        """How the prompt reached the model, in words."""
        if asked.ids is not None or self._tokenizer is None:
            return TOKEN_IDS
        return CHAT_TEMPLATE if uses_chat_template(self._tokenizer, asked.raw) else PLAIN_TEXT

    def run(self) -> "Summary":
        """Generate, write the text, and return the figures."""
        from genx.core.generation import ContextExceeded, Prefilled
        from genx.engine.stream import Summary, TextPiece, stream

        self._status.show("reading the prompt", 0, len(self._prompt.ids))
        streams = self._output.stream and not self._output.json
        notices: list[str] = []
        with Interruption() as interruption:
            for event in stream(
                self._loaded.model,
                self._decoder(),
                self._prompt,
                self._settings,
                stop_token_ids=self._stop_token_ids(),
                steps=self._loaded.steps,
                show_eos=self._output.special,
                interrupted=interruption.requested,
                clock=self._terminal.clock,
            ):
                match event:
                    case Prefilled(done, total):
                        self._status.show("reading the prompt", done, total)
                    case ContextExceeded(limit):
                        notices.append(
                            f"the text has grown past the model's context of {limit:,} tokens; "
                            f"from here on the model sees the last {limit:,} only"
                        )
                    case TextPiece(text) if streams:
                        self._write(text)
                    case Summary() as summary:
                        break
        self._end(summary)
        for notice in notices:
            self._status.warn(notice)
        return summary

    def _end(self, summary: "Summary") -> None:
        self._status.hide()
        if self._output.json:
            text = None if self._tokenizer is None else self._after_prompt(summary.text)
            self._text.write(as_json_line(result_object(summary, text)))
            return
        self._write("" if self._output.stream else summary.text)
        self._text.close()

    def _write(self, text: str) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._status.hide()  # before the text, since both may share a line of the terminal
            text = self._after_prompt(text)
        self._text.write(text)

    def _after_prompt(self, text: str) -> str:
        """The beginning of the output: with --echo the prompt, as the model reads it, and then `text`."""
        if not self._output.echo:
            return text
        decoder = self._decoder()
        prompt = "".join(map(decoder.push, self._prompt.ids)) + decoder.flush()
        separator = "," if self._tokenizer is None and text else ""  # ids alone would run together
        return prompt + separator + text

    def _decoder(self) -> "TextDecoder":
        if self._tokenizer is None:
            return _IdsAsText()
        return self._tokenizer.incremental(skip_special_tokens=not self._output.special)

    def _stop_token_ids(self) -> frozenset[int]:
        if not self._settings.stop:
            return frozenset()
        if self._tokenizer is None:
            raise ArgumentError("{stop} needs a tokenizer, and this checkpoint has none; {eos_token_id} ends at an id")
        ids = map(self._tokenizer.special_token_id, self._settings.stop)
        return frozenset(token_id for token_id in ids if token_id is not None)


class _IdsAsText:
    """What stands for text where there is no tokenizer: the ids, with commas between them."""

    def __init__(self) -> None:
        self._separator = ""

    def push(self, token_id: int) -> str:
        piece = f"{self._separator}{token_id}"
        self._separator = ","
        return piece

    def flush(self) -> str:
        return ""


def _prepare_prompt(
    folder: Path,
    tokenizer: "Tokenizer | None",
    asked: PromptRequest,
    text: str | None,
    defaults: GenerationDefaults,
) -> Prompt:
    """The prompt's ids, checked against the configuration before any weight is read."""
    if tokenizer is None or text is None:
        ids = list(asked.ids or ())
    else:
        ids = encode_prompt(
            tokenizer,
            text,
            system=asked.system,
            raw=asked.raw,
            parse_special=asked.parse_special,
            bos_token_id=defaults.bos_token_id,
        )
    if asked.attention_mask is not None:
        check_attention_mask(asked.attention_mask, len(ids))
    config = read_config(folder)
    check_prompt_ids(ids, config.vocab_size)
    return fit_prompt(ids, asked.attention_mask, config.max_position_embeddings, truncate=asked.truncate)


def _facts(
    loaded: "LoadedModel", folder: Path, wanted: ModelRequest, defaults: GenerationDefaults, mode: str
) -> ModelFacts:
    import torch

    from genx.core.graphs import describe_steps

    model = loaded.model
    return ModelFacts(
        name=name_of(folder),
        folder=str(folder),
        architecture=model.config.model_type,
        parameters=loaded.parameters,
        context=model.config.max_position_embeddings,
        device=str(model.device),
        dtype=str(model.cache_dtype).removeprefix("torch."),
        weights=loaded.weights,
        weight_bytes=loaded.weight_bytes,
        operations=loaded.arithmetic.operations,
        operations_reason=loaded.arithmetic.reason,
        decode=describe_steps(model),
        threads=torch.get_num_threads(),
        processes=wanted.tensor_parallel,
        mode=mode,
        suggested_sampling=defaults.sampling,
        origins={
            "device": Origin.DEFAULT if wanted.device == "auto" else Origin.FLAG,
            "dtype": Origin.DEFAULT if wanted.dtype == "auto" else Origin.FLAG,
            "threads": Origin.DEFAULT if wanted.threads is None else Origin.FLAG,
            "weights": _origin_of_weights(folder, wanted),
        },
    )


def _origin_of_weights(folder: Path, wanted: ModelRequest) -> Origin:
    if wanted.quantize != "none":
        return Origin.FLAG
    return Origin.CHECKPOINT if wanted.dtype == "auto" and open_source(folder).quantization else Origin.DEFAULT


def _announce(status: Status, settings: GenerationSettings, prompt: Prompt, asked: PromptRequest) -> None:
    if settings.unused:
        flags = ", ".join(map(spell_flag, settings.unused))
        status.warn(f"--greedy takes the most likely token; not used: {flags}")
    if prompt.dropped:
        status.warn(
            f"the prompt is longer than the model's context of {len(prompt.ids):,} tokens; "
            f"its {'last' if asked.truncate == 'right' else 'first'} {prompt.dropped:,} are left out"
        )
