"""What every model is: the forward contract, the one generation loop, load and save.

Legend of shapes, used in every file:
    B batch rows          T new tokens of this pass     S keys attended to (cached and new)
    C hidden size         H query heads                 G key/value heads       D head size
    I inner size of the feed-forward block              V vocabulary            L layers
    E experts             K experts chosen per token    N tokens routed to one expert
    W window              P prompt tokens
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.cache import Cache, LayerCache, PlainEntry, cache_nbytes, cache_start_pos
from genx.core.conv1d import Conv1D
from genx.core.generation import (
    ContextExceeded,
    GenerationEvent,
    Generators,
    Prefilled,
    Sampled,
    check_generation_mask,
    check_sequence_length,
    mask_as_bool,
    next_generation_input,
    sample_next_token,
    validate_sampling_args,
)
from genx.core.growing import GrowingColumns
from genx.core.positions import Positions
from genx.errors import ArgumentError, CheckpointError
from genx.sampling_args import normalize_eos_token_ids, resolve_pad_token_id, validate_max_new_tokens

# Columns read at once from a long prompt: large enough for full-speed matrix products, small enough that no mask of
# T x T and no logits of T x V ever exist.
PREFILL_CHUNK = 512

AnyCache = Sequence[LayerCache | PlainEntry]


class BaseModel(nn.Module, ABC):
    """A decoder-only language model; a subclass gives its sizes and `forward`."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """The architecture's own names for configuration fields, such as n_embd, and the common ones."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """What the architecture assumes where a configuration is silent."""

    model_type: ClassVar[str]
    """The name in config.json."""

    architecture: ClassVar[str]
    """The name under which other software knows the class, for `architectures` in config.json."""

    embedding_name: ClassVar[str]
    """The parameter that holds the token embedding, which a tied head shares."""

    head_name: ClassVar[str] = "lm_head.weight"

    rotary: ClassVar[bool] = True
    """Whether positions are rotary rather than learned; decides what config.json says."""

    lm_head: nn.Linear

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        """A model with random weights.

        Args:
            config: sizes; a mapping may use Hugging Face's keys or the short ones (`embed_dim`, `num_heads`, ...).

        Raises:
            ConfigError: (a ValueError) the sizes make no model.
        """
        super().__init__()
        self.config = config if isinstance(config, ModelConfig) else self.read_config(config)

    @classmethod
    def read_config(cls, source: Mapping[str, Any]) -> ModelConfig:
        """The configuration as this architecture reads it.

        Raises:
            ConfigError: (a ValueError) a field is missing, contradictory or impossible.
        """
        return ModelConfig.from_dict(source, model_type=cls.model_type, aliases=cls.aliases, defaults=cls.defaults)

    def config_dict(self) -> dict[str, Any]:
        """What config.json must hold for `read_config`, and other software, to make this model again."""
        own_names = {name: alias for alias, name in self.aliases.items()}
        written = self.config.to_dict(own_names, rotary=self.rotary)
        parameter = next(self.parameters())
        return {
            **written,
            "architectures": [self.architecture],
            "tie_word_embeddings": self.head_is_tied,
            "torch_dtype": str(parameter.dtype).removeprefix("torch."),
        }

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Published tensor names turned into this model's, by renaming and views only.

        Buffers that old files carry and every model recomputes are left out.
        """
        del config  # of use to architectures that split fused tensors
        return {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}

    @classmethod
    def load(cls, folder: str | Path, dtype: torch.dtype | None = None, device: str | None = None) -> Self:
        """The model of a checkpoint folder, in eval mode. See `genx.load_model`.

        Raises:
            CheckpointError: the folder does not hold a model of this class.
        """
        from genx.checkpoint import load_model  # the one import upwards: load and save are doors, not logic

        model = load_model(folder, dtype=dtype, device=device)
        if not isinstance(model, cls):
            raise CheckpointError(f"{folder} holds a {model.model_type} model; allowed: {cls.model_type}")
        return model

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which transformers reads too."""
        from genx.checkpoint import save_model

        save_model(self, folder)

    @property
    def _max_seq_len(self) -> int:
        """Positions that the model has, T_max; the same for every kind of position scaling."""
        return self.config.max_position_embeddings

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """For each layer the number of last positions that it attends to, None for all."""
        return (None,) * self.config.num_hidden_layers

    @property
    def head_is_tied(self) -> bool:
        """Whether the head is the token embedding itself."""
        return self.lm_head.weight is self.get_parameter(self.embedding_name)

    def tie_head(self) -> None:
        """Make the head the token embedding itself, one parameter under two names."""
        self.lm_head.weight = self.get_parameter(self.embedding_name)

    def finish_init(self) -> None:
        """What every constructor ends with: random weights, and the head tied if the configuration says so."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | Conv1D):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
                bias = getattr(module, "bias", None)
                if bias is not None:
                    nn.init.zeros_(bias)
        if self.config.tie_word_embeddings:
            self.tie_head()

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        cache: AnyCache | None = None,
        use_cache: bool = False,
        attention_mask: Tensor | None = None,
        *,
        logits_to_keep: int | None = None,
    ) -> tuple[Tensor, Cache | None]:
        """Logits for the token after each token of `x`.

        Args:
            x: [B, T] token ids.
            cache: what an earlier pass returned; one entry a layer.
            use_cache: whether to return a cache that holds these tokens too.
            attention_mask: [B, seen + T] of 0 and 1, one column per token seen, cached ones included; 0 hides a
                token, and the row equals one without it. None hides nothing.
            logits_to_keep: compute the head for this many last positions only; None for all.

        Returns:
            logits [B, T or logits_to_keep, V], and the cache (None without `use_cache`).

        Raises:
            ValueError: past the last position, or a mask of another shape or with other values.
        """

    def new_cache(self, at_most: int | None = None) -> list[LayerCache]:
        """An empty cache.

        Args:
            at_most: positions that the text can come to; up to 4,096 are allocated at once, more in steps of 1,024.
                None is the whole context, in steps.
        """
        limit = self._max_seq_len if at_most is None else min(at_most, self._max_seq_len)
        return [LayerCache(limit, window) for window in self.layer_windows]

    def begin(
        self, x: Tensor, cache: AnyCache | None, use_cache: bool, attention_mask: Tensor | None
    ) -> tuple[Positions, Sequence[LayerCache | None]]:
        """What every forward starts with: the positions of its tokens, and one cache entry (or None) a layer.

        Raises:
            ValueError: see `forward`.
        """
        batch, length = x.shape
        seen = cache_start_pos(cache)
        check_sequence_length(length, seen, self._max_seq_len)
        visible, past_mask = _split_mask(attention_mask, batch, seen, length)
        if not cache:
            empty = self.new_cache() if use_cache else [None] * self.config.num_hidden_layers
            return Positions(batch, length, x.device, 0, None, visible, use_cache), empty
        if len(cache) != self.config.num_hidden_layers:
            raise ValueError(
                f"the cache has {len(cache)} entries; allowed: one a layer, {self.config.num_hidden_layers}"
            )
        entries = [
            entry
            if isinstance(entry, LayerCache)
            else LayerCache.from_plain(entry, self._max_seq_len, window, past_mask)
            for entry, window in zip(cache, self.layer_windows, strict=True)
        ]
        rows = entries[0].rows
        _check_past(past_mask, rows, seen)
        return Positions(batch, length, x.device, seen, rows, visible, use_cache), entries

    def head(self, hidden: Tensor, logits_to_keep: int | None) -> Tensor:
        """Logits of the last `logits_to_keep` positions of `hidden` [B, T, C], or of all."""
        if logits_to_keep is not None:
            hidden = hidden[:, hidden.size(1) - logits_to_keep :]
        logits: Tensor = self.lm_head(hidden)  # [B, T or logits_to_keep, V]
        return logits

    @torch.no_grad()
    def generate(
        self,
        x: Tensor,
        max_new_tokens: int,
        do_sample: bool,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
        attention_mask: Tensor | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        *,
        generator: Generators = None,
    ) -> Tensor:
        """Continue each row of `x` by up to `max_new_tokens` tokens.

        Args:
            x: [B, P] token ids.
            max_new_tokens: at most this many steps; fewer if every row has chosen an end-of-text id.
            do_sample: False takes the most likely token at each step, True draws.
            temperature: see `sample_next_token`.
            top_k: see `sample_next_token`; not together with `top_p`.
            top_p: see `sample_next_token`.
            use_cache: keep keys and values between steps: the same result, faster.
            attention_mask: [B, P] of 0 and 1, 0 hides a token; each row equals the row without hidden tokens, alone.
                The last token of a row cannot be hidden.
            eos_token_id: the id, or ids, that end a row.
            pad_token_id: fills ended rows; the first `eos_token_id` unless given.
            generator: source of randomness; a sequence of B gives each row its own; None is torch's global one.

        Returns:
            [B, P + n] token ids, prompt included, after n steps.

        Raises:
            ValueError: an argument that is not allowed (ArgumentError), or logits that no token can be chosen from
                (GenerationError).
        """
        steps = self.generate_steps(
            x,
            max_new_tokens,
            do_sample,
            temperature,
            top_k,
            top_p,
            use_cache,
            attention_mask,
            eos_token_id,
            pad_token_id,
            generator=generator,
        )
        new = [event.token_ids for event in steps if isinstance(event, Sampled)]
        return torch.cat([x, *new], dim=1)  # [B, P + n]

    def generate_steps(
        self,
        x: Tensor,
        max_new_tokens: int,
        do_sample: bool,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
        attention_mask: Tensor | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        *,
        generator: Generators = None,
    ) -> Iterator[GenerationEvent]:
        """The loop of `generate`, as its steps happen; arguments are checked before the first.

        Yields:
            `Prefilled` as the prompt is read, then `Sampled` for each step, `ContextExceeded` once if the text grows
            past the context.
        """
        validate_sampling_args(do_sample, temperature, top_k, top_p)
        validate_max_new_tokens(max_new_tokens)
        eos_ids = normalize_eos_token_ids(eos_token_id)
        pad_id = resolve_pad_token_id(pad_token_id, eos_ids, self.config.vocab_size)
        _check_prompt(x, self.config.vocab_size)
        mask = None if attention_mask is None else check_generation_mask(attention_mask, x)
        sampling = (do_sample, temperature, top_k, top_p, generator)
        return self._steps(x, mask, max_new_tokens, use_cache, eos_ids, pad_id, sampling)

    @torch.no_grad()
    def _steps(
        self,
        x: Tensor,
        mask: Tensor | None,
        max_new_tokens: int,
        use_cache: bool,
        eos_ids: tuple[int, ...],
        pad_id: int | None,
        sampling: tuple[bool, float, int | None, float | None, Generators],
    ) -> Generator[GenerationEvent, None, None]:
        limit = self._max_seq_len
        final_length = x.size(1) + max_new_tokens
        text = GrowingColumns(x, final_length)
        masks = None if mask is None else GrowingColumns(mask, final_length)
        eos = torch.tensor(eos_ids, device=x.device, dtype=x.dtype)
        finished = torch.zeros(x.size(0), dtype=torch.bool, device=x.device)  # [B]
        cache: Cache | None = None
        for step in range(max_new_tokens):
            if text.length == limit + 1:
                yield ContextExceeded(limit)
            inputs, cache = next_generation_input(text.columns, cache, use_cache, limit)
            step_mask = None if masks is None else masks.columns[:, -limit:]
            keep = use_cache and text.length <= limit
            reading = self._read(inputs, cache, step_mask, keep, min(final_length, limit))
            if step == 0:
                logits, cache = yield from reading
            else:
                logits, cache = _result(reading)
            next_token = sample_next_token(logits, *sampling)  # [B, 1]
            if pad_id is not None:
                next_token = next_token.masked_fill(finished.unsqueeze(-1), pad_id)
                finished = finished | torch.isin(next_token.squeeze(-1), eos)
            text.append(next_token)
            if masks is not None:
                masks.append(torch.ones_like(next_token, dtype=torch.bool))
            yield Sampled(next_token, finished, cache_nbytes(cache))
            if pad_id is not None and bool(finished.all()):
                return

    def _read(
        self, inputs: Tensor, cache: Cache | None, mask: Tensor | None, keep: bool, at_most: int
    ) -> Generator[GenerationEvent, None, tuple[Tensor, Cache | None]]:
        """One pass of the model over `inputs`, long ones in chunks.

        Returns the logits [B, V] after the last token, and the cache (None unless it is kept).
        """
        length = inputs.size(1)
        chunked = length > PREFILL_CHUNK
        if cache is None and (keep or chunked):
            cache = self.new_cache(at_most if keep else length)
        seen = cache_start_pos(cache)
        for start in range(0, length, PREFILL_CHUNK):
            chunk = inputs[:, start : start + PREFILL_CHUNK]
            done = start + chunk.size(1)
            logits, cache = self(
                chunk,
                cache,
                use_cache=keep or chunked,
                attention_mask=None if mask is None else mask[:, : seen + done],
                logits_to_keep=int(done == length),
            )
            yield Prefilled(done, length)
        return logits[:, -1], cache if keep else None


def _result(reading: Generator[GenerationEvent, None, tuple[Tensor, Cache | None]]) -> tuple[Tensor, Cache | None]:
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: tuple[Tensor, Cache | None] = end.value
            return result


def _check_prompt(x: Tensor, vocab_size: int) -> None:
    if x.dim() != 2 or x.size(1) == 0 or x.is_floating_point():
        raise ArgumentError(
            "the prompt has the shape {given} and dtype {dtype}; allowed: whole numbers [B, P] with at least one "
            "token a row; start an empty text from the model's BOS id",
            given=list(x.shape),
            dtype=str(x.dtype),
        )
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < vocab_size:
        outside = int(x.min()) if int(x.min()) < 0 else int(x.max())
        raise ArgumentError(
            "the prompt holds the token id {given}; allowed: 0 to {last}, the model's vocabulary",
            given=outside,
            last=vocab_size - 1,
        )


def _split_mask(
    attention_mask: Tensor | None, batch: int, seen: int, length: int
) -> tuple[Tensor | None, Tensor | None]:
    """A mask's new columns, bool [B, T], and its past ones, bool [B, seen]; None for a part that hides nothing."""
    if attention_mask is None:
        return None, None
    if attention_mask.shape != (batch, seen + length):
        raise ArgumentError(
            "{attention_mask} has the shape {given}; allowed: {allowed}, a column per token seen, cached ones included",
            given=list(attention_mask.shape),
            allowed=[batch, seen + length],
        )
    mask = mask_as_bool(attention_mask)
    if bool(mask.all()):
        return None, None
    past, new = mask[:, :seen], mask[:, seen:]
    return (None if bool(new.all()) else new), past


def _check_past(past_mask: Tensor | None, rows: Tensor | None, seen: int) -> None:
    """A mask cannot hide now what the cache holds, or show what it left out."""
    if past_mask is None:
        return
    given = past_mask.sum(-1)  # [B]
    held = torch.full_like(given, seen) if rows is None else rows
    if not torch.equal(given, held):
        raise ArgumentError(
            "{attention_mask} shows {given} cached tokens a row; allowed: {held}, as when the cache was filled",
            given=given.tolist(),
            held=held.tolist(),
        )
