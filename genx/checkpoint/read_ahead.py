"""Let the system read a model's weights while something else goes on. No torch."""

import os
import sys
from pathlib import Path

from genx.checkpoint.source import open_source
from genx.errors import GenxError


def read_ahead(path: Path) -> None:
    """Ask for the weights at `path` to be read into the system's cache, and return at once.

    Nothing happens where the system cannot be asked, or the weights cannot be found: whoever loads them will say so.
    """
    if sys.platform != "linux":
        return
    try:
        files = open_source(path).weight_files
    except GenxError:
        return
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass
        finally:
            os.close(descriptor)
