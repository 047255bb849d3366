"""A model without storage: its modules and shapes, ready to be given parameters."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from genx.config import ModelConfig
from genx.core.base_model import BaseModel
from genx.errors import CheckpointError
from genx.messages import printable

# A configuration may claim more modules than fit in memory; up to here they are built to name what is missing.
_PLAUSIBLE_MODULES = 20_000


def build_skeleton(folder: Path, architecture: type[BaseModel], config: ModelConfig, stored: int) -> BaseModel:
    """The model of `config` with all parameters on the meta device.

    Raises:
        CheckpointError: it would have far more modules than `stored`, the count of tensors that `folder` holds.
    """
    modules = config.num_hidden_layers * max(1, config.num_local_experts)
    if modules > max(stored, _PLAUSIBLE_MODULES):
        raise CheckpointError(
            f"config.json of {printable(folder)} asks for {config.num_hidden_layers:,} layers with "
            f"{config.num_local_experts:,} experts, but {stored:,} tensors are stored; check config.json"
        )
    with torch.device("meta"), _WithoutInitialisation():
        return architecture(config)


class _WithoutInitialisation(TorchFunctionMode):
    """Makes the functions of torch.nn.init do nothing.

    There is nothing to initialise on the meta device, and `normal_` there imports torch._dynamo: 1.5 seconds and
    70 MB (torch 2.13).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
