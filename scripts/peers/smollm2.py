"""SmolLM2-135M in every format that is compared, made once from the GGUF file that scripts/fetch_smollm2 brings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genx.checkpoint import convert_model, models_folder, resolve_model
from peers.gguf_copies import write_copy

SOURCE = "smollm2-135m-q4_1.gguf"


@dataclass(frozen=True)
class Files:
    """Where the formats are.

    Attributes:
        models: for genx, by the format of the weights.
        ggufs: for llama.cpp, by ggml's name of the format.
    """

    models: Mapping[str, Path]
    ggufs: Mapping[str, Path]


def make_files() -> Files:
    """Make what is not there yet, in the folder `peers` beside the models."""
    folder = models_folder() / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    source = resolve_model(SOURCE)
    models = {"float32": resolve_model("smollm2-135m")}
    for name in ("bfloat16", "int8", "int4"):
        models[name] = folder / f"smollm2-135m-{name}"
        if not models[name].exists():
            how = {"dtype": name} if name == "bfloat16" else {"quantize": name}
            convert_model(resolve_model("smollm2-135m"), models[name], **how)
    ggufs = {name: folder / f"smollm2-135m-{name}.gguf" for name in ("F16", "Q8_0", "Q4_1")}
    for name, file in ggufs.items():
        if not file.exists():
            write_copy(source, file, name)
    return Files(models, ggufs)
