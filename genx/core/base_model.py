"""What every model is: the forward contract, the one generation loop, load and save.

Legend of shapes, used in every file:
    B batch rows          T new tokens of this pass     S keys attended to (cached and new)
    C hidden size         H query heads                 G key/value heads       D head size
    I inner size of the feed-forward block              V vocabulary            L layers
    E experts             K experts chosen per token    N tokens routed to one expert
    W window              P prompt tokens               R channels of a head that rotate
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.config_fields import shown
from genx.core.cache import (
    Cache,
    Entry,
    LayerCache,
    PlainEntry,
    RowEntries,
    cache_start_pos,
    cache_text_lengths,
)
from genx.core.conv1d import Conv1D
from genx.core.fixed_shapes import FixedEntry
from genx.core.generation import (
    GenerationEvent,
    Generators,
    Sampled,
    check_generation_mask,
    check_sequence_length,
    validate_sampling_args,
)
from genx.core.loop import check_cache, check_prompt, generation_loop
from genx.core.masks import check_past, split_mask
from genx.core.positions import Positions
from genx.core.rope import longest_short_text
from genx.errors import ArgumentError, CheckpointError, ConfigError
from genx.sampling_args import normalize_eos_token_ids, resolve_pad_token_id, validate_max_new_tokens

AnyCache = Sequence[Entry | PlainEntry]


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

    refused: ClassVar[tuple[str, ...]] = ()
    """Fields by which a configuration asks for what the architecture can have, but not here."""

    quantizations: ClassVar[tuple[str, ...]] = ()
    """What `quant_method` may say in published files; such weights are dequantised as they are loaded."""

    rotary: ClassVar[bool] = True
    """Whether positions are rotary rather than learned; decides what config.json says."""

    host_decides: str | None = None
    """Why not the same operations serve every decode step, if they do not; blocks may say so too."""

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
        for name in self.refused:
            if self.config.extra.get(name):
                given = shown(self.config.extra[name])
                raise ConfigError(f"{name} is {given}; allowed: false, since genx does not compute it")

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
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values in the cache: that of the hidden states, whatever the weights are held in."""
        embedding = self.get_submodule(self.embedding_name.rpartition(".")[0])
        own: torch.dtype | None = getattr(embedding, "output_dtype", None)
        return own or self.get_parameter(self.embedding_name).dtype

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
            x: [B, T] token ids; of joined rows [1, T], the tokens of one after those of the other.
            cache: what an earlier pass returned, or `join_rows` made of several; one entry a layer.
            use_cache: whether to return a cache that holds these tokens too.
            attention_mask: [B, seen + T] of 0 and 1, one column per token seen, cached ones included; 0 hides a
                token, and the row equals one without it. None hides nothing.
            logits_to_keep: compute the head for this many last positions only; None for all. Of joined rows, 1 is
                the last position of each.

        Returns:
            logits [B, T or logits_to_keep, V], of joined rows [1, T or rows, V], and the cache (None without
            `use_cache`).

        Raises:
            ValueError: past the last position, or a mask of another shape or with other values.
        """

    def new_cache(self, at_most: int | None = None, announced: int | Tensor = 0) -> list[LayerCache]:
        """An empty cache.

        Args:
            at_most: positions that the text can come to; up to 4,096 are allocated at once, more in steps of 1,024.
                None is the whole context, in steps.
            announced: tokens that will be read before any is chosen, of each row [B] or of every row; see `LayerCache`.
        """
        limit = self._max_seq_len if at_most is None else min(at_most, self._max_seq_len)
        return [LayerCache(limit, window, announced) for window in self.layer_windows]

    def reads_alike(self, some: int | Tensor, others: int | Tensor) -> bool:
        """Whether what is read of a text with `some` tokens can be part of one with `others`, in all rows [B].

        Not where LongRoPE turns to its long factors: the longer text is then read again.
        """
        longest = longest_short_text(self.config)
        if longest is None:
            return True
        some, others = (torch.as_tensor(lengths, device="cpu") for lengths in (some, others))
        return bool(((some == 0) | ((some > longest) == (others > longest))).all())

    def begin(
        self, x: Tensor, cache: AnyCache | None, use_cache: bool, attention_mask: Tensor | None
    ) -> tuple[Positions, Sequence[Entry | None]]:
        """What every forward starts with: the positions of its tokens, and one cache entry (or None) a layer.

        Raises:
            ValueError: see `forward`.
        """
        batch, length = x.shape
        fixed = [entry for entry in cache or () if isinstance(entry, FixedEntry)]
        if fixed:
            return fixed[0].step, fixed
        if cache and len(cache) != self.config.num_hidden_layers:
            raise ValueError(
                f"the cache has {len(cache)} entries; allowed: one a layer, {self.config.num_hidden_layers}"
            )
        joined = [entry for entry in cache or () if isinstance(entry, RowEntries)]
        if joined:
            step = _begin_rows(x, joined, use_cache, attention_mask)
            for row in step.row_steps:
                check_sequence_length(row.length, row.seen, self._max_seq_len)
            self._check_text_lengths(joined, step)
            return step, joined
        seen = cache_start_pos(cache)
        check_sequence_length(length, seen, self._max_seq_len)
        visible, past_mask = split_mask(attention_mask, batch, seen, length)
        if not cache:
            empty = self.new_cache() if use_cache else [None] * self.config.num_hidden_layers
            return Positions(batch, length, x.device, 0, None, visible, use_cache), empty
        entries = [
            entry
            if isinstance(entry, LayerCache)
            else LayerCache.from_plain(entry, self._max_seq_len, window, past_mask)
            for entry, window in zip(cache, self.layer_windows, strict=True)
            if not isinstance(entry, RowEntries | FixedEntry)
        ]
        rows = entries[0].rows
        check_past(past_mask, rows, seen)
        step = Positions(batch, length, x.device, seen, rows, visible, use_cache, entries[0].announced)
        self._check_text_lengths(entries, step)
        return step, entries

    def _check_text_lengths(self, entries: Sequence[Entry], step: Positions) -> None:
        known = cache_text_lengths(entries)
        if step.row_lengths is not None:
            known = step.of_each_token(torch.as_tensor(known))
        if step.seen and not self.reads_alike(known, step.text_lengths):
            raise ValueError(
                f"the cache was read as that of a text of at most {longest_short_text(self.config)} tokens, and this "
                "pass makes it longer, where LongRoPE turns every position by another angle; read the text again, "
                "with new_cache(announced=its length) if in chunks"
            )

    def head(self, hidden: Tensor, step: Positions, logits_to_keep: int | None) -> Tensor:
        """Logits of the last `logits_to_keep` positions of `hidden` [B, T, C], or of all; see `forward`."""
        if logits_to_keep is not None:
            if logits_to_keep < 0:
                raise ArgumentError("{logits_to_keep} is {given}; allowed: at least 0, or none", given=logits_to_keep)
            if step.row_ends is not None and logits_to_keep == 1:
                hidden = hidden[:, step.row_ends]  # [1, rows, C]
                logits_to_keep = hidden.size(1)
            hidden = hidden[:, max(hidden.size(1) - logits_to_keep, 0) :]
            if logits_to_keep == 0:
                return hidden.new_empty((hidden.size(0), 0, self.config.vocab_size))
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
        cache: Cache | None = None,
    ) -> Iterator[GenerationEvent]:
        """The loop of `generate`, as its steps happen; arguments are checked before the first.

        Args:
            cache: what an earlier pass returned for the first columns of `x`, which are then not read again. The other
                arguments are those of `generate`.

        Yields:
            `Prefilled` as the prompt is read, then `Sampled` for each step, `ContextExceeded` once if the text grows
            past the context.
        """
        validate_sampling_args(do_sample, temperature, top_k, top_p)
        validate_max_new_tokens(max_new_tokens)
        eos_ids = normalize_eos_token_ids(eos_token_id)
        pad_id = resolve_pad_token_id(pad_token_id, eos_ids, self.config.vocab_size)
        check_prompt(x, self.config.vocab_size)
        mask = None if attention_mask is None else check_generation_mask(attention_mask, x)
        if isinstance(generator, Sequence) and len(generator) != x.size(0):
            raise ArgumentError(
                "{generator} has {given} entries; allowed: one a row, {rows}", given=len(generator), rows=x.size(0)
            )
        if cache is not None:
            check_cache(cache, x, use_cache)
        sampling = (do_sample, temperature, top_k, top_p, generator)
        return generation_loop(self, x, mask, max_new_tokens, use_cache, eos_ids, pad_id, sampling, cache)


def _begin_rows(x: Tensor, entries: Sequence[RowEntries], use_cache: bool, attention_mask: Tensor | None) -> Positions:
    lengths = entries[0].lengths
    if x.shape != (1, sum(lengths)) or attention_mask is not None:
        raise ValueError(
            f"joined rows were given tokens {list(x.shape)}; allowed: those of each row side by side, "
            f"{[1, sum(lengths)]}, and no attention_mask"
        )
    return Positions.of_rows(entries[0].seen, lengths, x.device, use_cache, entries[0].text_lengths)
