"""Compiles genx's native operations when it is installed. Without a C compiler genx installs all the same: it is
slower then, not poorer.

    python scripts/hatch_build.py [FOLDER] [-- FLAG ...]     compile by hand, into genx/kernels unless a folder is named
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "genx" / "kernels" / "native"
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")

# -ffast-math is left alone: it would set flush-to-zero for the whole process and drop the checks for NaN.
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fvisibility=default", "-Wno-psabi")
AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")


def compile_libraries(folder: Path, extra: Sequence[str] = ()) -> list[Path]:
    """Compile one library for each level of instructions into `folder`; none, with a note, if it cannot be done."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    levels = {"baseline": ()}
    if platform.machine().lower() in ("x86_64", "amd64"):
        levels["avx2"] = AVX2_FLAGS
    libraries: list[Path] = []
    for level, flags in levels.items():
        library = folder / f"native-{level}{SUFFIX}"
        sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
        command = [*compiler, *FLAGS, *flags, *extra, *sources, "-o", str(library), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            fault = done.stderr.strip() if done.returncode else ""
        except OSError as error:
            fault = str(error)
        if fault:
            print(f"genx: native operations are left out: {shlex.join(command)}: {fault}", file=sys.stderr)
            return []
        libraries.append(library)
    return libraries


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = None

if BuildHookInterface is not None:

    class NativeOperations(BuildHookInterface):  # type: ignore[misc]
        """Puts the compiled libraries into wheels, and beside the sources of an editable install."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            del version
            if self.target_name != "wheel":
                return
            libraries = compile_libraries(ROOT / "genx" / "kernels")
            if libraries:
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{_platform_tag()}"
                build_data["artifacts"] += [f"/{library.relative_to(ROOT).as_posix()}" for library in libraries]

    def _platform_tag() -> str:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    arguments, _, flags = " ".join(sys.argv[1:]).partition("--")
    target = Path(arguments.strip() or ROOT / "genx" / "kernels")
    sys.exit(0 if compile_libraries(target, shlex.split(flags)) else 1)
