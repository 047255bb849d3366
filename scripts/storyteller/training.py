"""Training of a small model of genx's own zoo on one core, from a seed, so that it can be stopped and resumed.

Muon for the matrices and AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) for the rest, with warm-up and a cosine
to a tenth of the rate. The state is saved as a folder that replaces the one before it; a resumed run ends with the
weights of one that never stopped.
"""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from genx import load_model
from genx.core.base_model import BaseModel
from genx.models.llama import Llama
from storyteller.muon import Muon
from storyteller.rows import Stories


@dataclass(frozen=True)
class Plan:
    """Sizes of the model and of its training; everything that a run depends on but the stories.

    `positions` are what the model has, more than it is trained on. `rows` are those of a batch, `context` tokens each.
    An epoch has at most `grammar_stories` of the grammar's stories, and each of SmolLM2's, which are few, `repeats`
    times.
    """

    vocabulary: int = 2048
    hidden: int = 160
    inner: int = 432
    layers: int = 5
    heads: int = 5
    kv_heads: int = 5
    positions: int = 1024
    context: int = 512
    rows: int = 4
    grammar_stories: int = 60_000
    repeats: int = 12
    steps: int = 4000
    warm_up: int = 20
    rate: float = 0.01
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 1

    def new_model(self, end_id: int) -> Llama:
        """A model with random weights, the same for the same seed."""
        torch.manual_seed(self.seed)
        return Llama(
            {
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.inner,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "max_position_embeddings": self.positions,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "tie_word_embeddings": True,
                "bos_token_id": end_id,
                "eos_token_id": end_id,
            }
        )

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


class Training:
    """One run: the model, the optimizer, and how far it is."""

    def __init__(self, plan: Plan, stories: Stories, end_id: int) -> None:
        self.plan = plan
        self.step = 0
        self.tokens = 0
        self._stories = stories
        self._use(plan.new_model(end_id))

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.plan.steps

    def run(self, steps: int) -> Iterator[float]:
        """Take at most `steps` steps; yields the loss of each, in nats a token."""
        end = min(self.plan.steps, self.step + steps)
        for batch in self._batches():
            if self.step >= end:
                return
            loss = batch_loss(self.model, batch)
            self.model.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.plan.rate_at(self.step)
                optimizer.step()
            self.step += 1
            self.tokens += batch[:, 1:].numel()
            yield loss.item()

    def save(self, folder: Path) -> None:
        """Write the state; `folder` is replaced only when the new one is whole."""
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        self.model.save(new)
        torch.save([optimizer.state_dict() for optimizer in self._optimizers], new / "optimizers.pt")
        state = {"step": self.step, "tokens": self.tokens, "plan": asdict(self.plan)}
        (new / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        old = folder.with_name(f"{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def resume(self, folder: Path) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: it is that of another plan.
        """
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["plan"] != asdict(self.plan):
            raise ValueError(f"{folder} was made with {state['plan']}; allowed: the same plan, or another folder")
        self._use(load_model(folder))
        states = torch.load(folder / "optimizers.pt", weights_only=True)
        for optimizer, saved in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.tokens = state["step"], state["tokens"]

    def _use(self, model: BaseModel) -> None:
        self.model = model.train()
        embedding = model.get_parameter(model.embedding_name)
        matrices = [one for one in model.parameters() if one.dim() > 1 and one is not embedding]
        others = [embedding, *(one for one in model.parameters() if one.dim() < 2)]
        self._optimizers = (
            Muon(matrices, self.plan.rate, momentum=0.95, weight_decay=self.plan.weight_decay),
            torch.optim.AdamW(others, self.plan.rate, betas=(0.9, 0.95), weight_decay=0.0),
        )

    def _batches(self) -> Iterator[Tensor]:
        """Batches [rows, context + 1] from the current step on; the order is another one in each epoch."""
        number, epoch = 0, 0
        rows: list[Tensor] = []
        while True:
            for row in self._stories.packed(self.plan.context, self.plan.seed * 1000 + epoch):
                rows.append(row)
                if len(rows) == self.plan.rows:
                    if number >= self.step:
                        yield torch.stack(rows)
                    number += 1
                    rows = []
            epoch += 1


def batch_loss(model: BaseModel, rows: Tensor) -> Tensor:
    """Mean loss of predicting each next token of `rows` [B, T + 1], in nats."""
    logits, _ = model(rows[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
