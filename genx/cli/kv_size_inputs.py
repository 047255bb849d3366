"""Where genx kv-size gets a model from: a file, a folder, stdin, a preset or the hub; and what its weights take."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genx.cli.terminal import Terminal
from genx.config import read_json
from genx.errors import CheckpointError, ConfigError, UsageError
from genx.kv_size import presets
from genx.kv_size.dtypes import find_dtype
from genx.kv_size.quantities import decimal_ratio, parse_bytes
from genx.messages import printable

_MAX_STDIN_BYTES = 64 << 20
_PARAMETERS = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([kKmMbB]?)\s*[xX*]\s*([A-Za-z]\w*)")
_PARAMETER_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


@dataclass(frozen=True)
class Source:
    """A model's configuration, and where its weights lie if they do.

    Attributes:
        name: what the answer calls it.
        config: as `config.json` holds it.
        weights: a checkpoint folder or a GGUF file, None if there are no weights to measure.
    """

    name: str
    config: Mapping[str, Any]
    weights: Path | None = None


def find_source(given: str, terminal: Terminal, *, hub: bool) -> Source:
    """What a MODEL on the command line means: `-`, a path, a preset, a name in the models folder or genx, a hub id.

    Raises:
        UsageError: it means nothing, or cannot be read.
    """
    try:
        return _find(given, terminal, hub=hub)
    except (ConfigError, CheckpointError) as error:
        # Exit code 1 is kept for what does not fit, so that a pipeline can rely on it.
        raise UsageError(str(error)) from error


def _find(given: str, terminal: Terminal, *, hub: bool) -> Source:
    if given == "-":
        return Source("stdin", _parse_stdin(terminal))
    path = Path(given).expanduser()
    if _exists(path):
        return _from_path(path, given)
    preset = presets.find_preset(given)
    if preset is not None:
        return Source(preset.stem, presets.read_preset(preset))
    installed = _installed(given)
    if installed is not None:
        return _from_path(installed, given)
    if hub:
        from genx.cli.kv_size_hub import fetch_config

        return Source(given, fetch_config(given, terminal.environment))
    similar = presets.similar_presets(given)
    guess = f"; did you mean {' or '.join(similar)}?" if similar else ";"
    raise UsageError(
        f"there is no file, folder or preset {printable(given)}{guess} allowed: config.json, a checkpoint folder, a "
        "GGUF file, - for stdin, a preset (--list shows them), or a Hugging Face id with --hub"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _installed(name: str) -> Path | None:
    from genx.checkpoint.locate import EMBEDDED_NAME, embedded_model, models_folder

    folder = models_folder() / name
    inside = name not in ("", ".", "..") and not re.search(r"[\\/:\0]", name)
    if inside and (folder / "config.json").is_file():
        return folder
    return embedded_model() if name == EMBEDDED_NAME else None


def _from_path(path: Path, given: str) -> Source:
    name = path.resolve().stem if path.is_file() and path.name != "config.json" else path.resolve().name
    if path.is_dir():
        config = path / "config.json"
        if config.is_file():
            return Source(name, _object(read_json(config, "the configuration"), str(config)), path)
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise UsageError(
                f"{printable(given)} has no config.json; allowed: a folder with one, or with exactly one GGUF file"
            )
        path = files[0]
    from genx.gguf.header import is_gguf, read_gguf_header

    if is_gguf(path):
        from genx.kv_size.gguf_config import config_of_gguf

        return Source(name, config_of_gguf(read_gguf_header(path).metadata), path)
    if path.name == "config.json":
        name = path.resolve().parent.name or name
    return Source(name, _object(read_json(path, "the configuration"), str(path)))


def _parse_stdin(terminal: Terminal) -> Mapping[str, Any]:
    text = terminal.stdin.read(_MAX_STDIN_BYTES + 1)
    if len(text) > _MAX_STDIN_BYTES:
        raise UsageError(f"stdin has more than {_MAX_STDIN_BYTES:,} bytes; allowed: one config.json")
    try:
        return _object(json.loads(text.decode("utf-8-sig")), "stdin")
    except RecursionError as error:
        raise UsageError("stdin is nested too deeply; allowed: one config.json") from error
    except ValueError as error:
        raise UsageError(f"stdin is not JSON: {error}; allowed: one config.json") from error


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{printable(where)} holds no JSON object; allowed: the content of a config.json")
    return value


def measure_weights(spec: str | None, source: Source) -> int | None:
    """Bytes of the weights: as given, or measured where the source has some; None if they are left out.

    Raises:
        UsageError: the value is none, or asks to measure what is not there.
    """
    if spec is None and source.weights is None:
        return None
    if spec is None or spec == "auto":
        return _measured(source, insist=spec is not None)
    if spec == "none":
        return None
    parameters = _PARAMETERS.fullmatch(spec.strip())
    if parameters is None:
        return parse_bytes(spec, "--weights")
    numerator, denominator = decimal_ratio(parameters[1])
    count, over = divmod(numerator * _PARAMETER_UNITS[parameters[2].lower()], denominator)
    if over:
        raise UsageError(f"--weights is {spec!r}; allowed: a whole number of parameters")
    return find_dtype(parameters[3], "--weights' type").vector_bytes(count)


def _measured(source: Source, *, insist: bool) -> int | None:
    try:
        found = None if source.weights is None else _weights_of(source.weights)
    except CheckpointError as error:
        raise UsageError(f"{error}; or give --weights BYTES or none") from error
    if found is None and insist:
        raise UsageError(f"{source.name} has no weights to measure; give --weights BYTES, 8.03Bxbf16 or none")
    return found


def _weights_of(path: Path) -> int | None:
    """From the headers of safetensors files; else the sizes of files of weights."""
    if path.is_file():
        from genx.gguf.parts import gguf_parts

        return _total_size(gguf_parts(path))
    safetensors = _safetensors_of(path)
    if safetensors:
        from genx.checkpoint.safetensors_header import read_header

        headers = [read_header(file) for file in safetensors]
        return sum(tensor.stop - tensor.start for header in headers for tensor in header.tensors.values())
    for pattern in ("pytorch_model*.bin", "*.gguf", "*.pth"):
        files = sorted(path.glob(pattern))
        if files:
            return _total_size(files)
    return None


def _safetensors_of(folder: Path) -> list[Path]:
    """The shards that the index names, else model*.safetensors, else any: some folders hold the weights twice."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _object(read_json(index, "the index"), str(index)).get("weight_map")
        names = sorted(set(shards.values())) if isinstance(shards, dict) else []
        if not names or not all(isinstance(name, str) and re.fullmatch(r"[^\\/:\0]+", name) for name in names):
            raise CheckpointError(f"{index} names no shards, or ones outside its folder; download it again")
        return [folder / name for name in names]
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))


def _total_size(files: Sequence[Path]) -> int:
    try:
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from error
