"""What a command line asks of one run, as read from its flags."""

from dataclasses import dataclass, replace

from genx.engine.arithmetic import Arithmetic, choose_arithmetic
from genx.errors import ArgumentError


@dataclass(frozen=True)
class ModelRequest:
    """Which model, where, and in which arithmetic; `threads` None leaves torch's choice."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    quantize: str = "none"
    kernels: str = "auto"
    tensor_parallel: int = 1

    def arithmetic(self) -> Arithmetic:
        """What it is computed in on this machine.

        Raises:
            ArgumentError: what is asked for cannot be had here.
        """
        if self.tensor_parallel == 1:
            return choose_arithmetic(self.device, self.dtype, self.quantize, self.kernels)
        chosen = choose_arithmetic(self.device, self.dtype, "none", "torch")
        return replace(chosen, reason="native ones are for one process")


@dataclass(frozen=True)
class OutputRequest:
    """What is shown of a run, and how."""

    special: bool = False
    echo: bool = False
    stream: bool = True
    json: bool = False
    stats: bool = False
    explain: bool = False
    profile: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class PromptRequest:
    """What the command line says about the prompt; None where it is silent."""

    text: str | None = None
    file: str | None = None
    ids: tuple[int, ...] | None = None
    system: str | None = None
    attention_mask: tuple[int, ...] | None = None
    raw: bool = False
    parse_special: bool | None = None
    keep_newline: bool = False
    truncate: str | None = None


def check_one_process(request: ModelRequest) -> None:
    """Refuse with several processes what only one can do.

    Raises:
        ArgumentError: they are asked for, and it is too.
    """
    if request.tensor_parallel == 1:
        return
    for name, given in (("quantize", request.quantize != "none"), ("kernels", request.kernels == "native")):
        if given:
            value = getattr(request, name)
            raise ArgumentError(
                "{" + name + "} {value} and {tensor_parallel} {processes} are both given; allowed: one of them, it is "
                "for one process",
                value=value,
                processes=request.tensor_parallel,
            )


def check_prompt_request(request: PromptRequest) -> None:
    """Refuse several prompts at once, and text options for a prompt of ids.

    Raises:
        ArgumentError: two of them are given.
    """
    sources = {"prompt": request.text, "file": request.file, "input_ids": request.ids}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{{{given[0]}}} and {{{given[1]}}} are both given; allowed: one of them; drop the other")
    if request.ids is not None and request.system is not None:
        raise ArgumentError("{input_ids} and {system} are both given; allowed: one of them; ids take no chat template")
