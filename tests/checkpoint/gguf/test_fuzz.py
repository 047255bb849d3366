"""Damaged and hostile files: whatever bytes change, genx answers or says one line, without a hang or much memory.

The commands run in this process, so that thousands of files take minutes.
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genx.gguf.header import read_gguf_header
from tests.architectures import make_tiny
from tests.cli.in_process import Result, run_genx
from tests.fixtures.gguf_files import byte_level_tokenizer, convert_to_gguf, sentencepiece_tokenizer

resource = pytest.importorskip("resource", reason="measures memory as Unix does")

FEW, MANY = 300, 5000
_HANG_SECONDS = 60.0  # a run takes some milliseconds
_MOST_MEMORY_KIB = 300 << 10  # that all files of a test together may add to the peak of this process
_NUMBERS = (0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=300, num_hidden_layers=1).folder


@pytest.fixture(scope="module")
def gguf_bytes(folder: Path) -> bytes:
    keys = byte_level_tokenizer(["h e", "l l"], size=300, **{"bos_token_id": 1})
    return convert_to_gguf(folder, folder.parent / "whole.gguf", kind="Q4_0", metadata=keys).read_bytes()


def mutations(whole: bytes, count: int, seed: int, header: int) -> Iterator[bytes]:
    """`count` files like `whole`: cut, changed in some bytes or numbers, with parts doubled, moved or taken out."""
    chance = random.Random(seed)
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            at = chance.randrange(min(header, len(content)) if chance.random() < 0.9 else len(content) or 1)
            match chance.randrange(7):
                case 0:
                    content[at] = chance.choice(_INTERESTING)
                case 1:
                    content[at] ^= 1 << chance.randrange(8)
                case 2:
                    number = chance.choice(_NUMBERS)
                    content[at : at + 8] = number.to_bytes(8, "little")
                case 3:
                    content[at : at + 4] = chance.choice((0, 9, 1 << 24, (1 << 32) - 1)).to_bytes(4, "little")
                case 4:
                    del content[at : at + chance.choice((1, 4, 8, 100))]
                case 5:
                    content[at:at] = content[at : at + chance.choice((1, 8, 64))]
                case 6:
                    del content[at:]
            if not content:
                break
        yield bytes(content)


def _peak_kib() -> int:
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


class Watch:
    """Holds each run to one line, its exit code, its time, and all together to their memory."""

    def __init__(self) -> None:
        self._peak = _peak_kib()
        self.refused = 0

    def run(self, *arguments: str) -> None:
        started = time.perf_counter()
        result = run_genx(*arguments)
        assert time.perf_counter() - started < _HANG_SECONDS, "it hung"
        self._check(result)

    def _check(self, result: Result) -> None:
        lines = result.stderr.splitlines()
        assert "this is a bug" not in result.stderr, result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        if result.status == 0:
            assert all(line.startswith("genx: warning: ") for line in lines), result.stderr
            return
        self.refused += 1
        assert result.status == 1, result
        assert lines[-1].startswith("genx: error: "), result.stderr
        assert all(line.startswith("genx: warning: ") for line in lines[:-1]), result.stderr
        assert result.stderr.isprintable() or all(line.isprintable() for line in lines)

    def close(self, count: int) -> None:
        grown = _peak_kib() - self._peak
        assert grown < _MOST_MEMORY_KIB, f"{grown:,} KiB"
        assert self.refused > count / 10


def fuzz_gguf(whole: bytes, file: Path, count: int, seed: int) -> None:
    file.write_bytes(whole)
    header = min(tensor.offset for tensor in read_gguf_header(file).tensors.values())
    watch = Watch()
    for content in mutations(whole, count, seed, header):
        file.write_bytes(content)
        if watch.refused % 2:
            watch.run("run", "-m", str(file), "--greedy", "-n", "2", "hello")
        else:
            watch.run("inspect", str(file))
    watch.close(count)


def fuzz_folder(folder: Path, copy: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    watch = Watch()
    names = ["model.safetensors", "config.json"]
    for name in names:
        (copy / name).write_bytes((folder / name).read_bytes())
    for number in range(count):
        name = chance.choice(names)
        whole = (folder / name).read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little") if name == names[0] else len(whole)
        (copy / name).write_bytes(next(mutations(whole, 1, seed + number, header)))
        watch.run("run", "-m", str(copy), "--ids", "1,2,3", "--greedy", "-n", "2")
        (copy / name).write_bytes(whole)
    watch.close(count)


def test_gguf_files(gguf_bytes: bytes, tmp_path: Path) -> None:
    fuzz_gguf(gguf_bytes, tmp_path / "model.gguf", FEW, seed=1)


def test_safetensors_folders(folder: Path, tmp_path: Path) -> None:
    fuzz_folder(folder, tmp_path, FEW, seed=2)


@pytest.mark.slow
def test_many_gguf_files(gguf_bytes: bytes, tmp_path: Path) -> None:
    fuzz_gguf(gguf_bytes, tmp_path / "model.gguf", MANY, seed=3)


@pytest.mark.slow
def test_many_safetensors_folders(folder: Path, tmp_path: Path) -> None:
    fuzz_folder(folder, tmp_path, MANY, seed=4)


def test_a_vocabulary_made_to_be_slow(gguf_bytes: bytes, folder: Path, tmp_path: Path) -> None:
    """Long tokens that are all beginnings of one another: quadratic for whoever tries each pair."""
    keys = sentencepiece_tokenizer(["a" * length for length in range(2, 3000)])
    file = convert_to_gguf(folder, tmp_path / "slow.gguf", metadata=keys)
    Watch().run("run", "-m", str(file), "--greedy", "-n", "2", "hello")
