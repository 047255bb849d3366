"""One writer for a file: a lock of the operating system's, which ends with the process however that ends. No torch."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from genx.errors import GenxError

# flock(2) says the first; msvcrt.locking the second.
_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES)


class LockedError(GenxError):
    """Another run, of this process or another one, holds the lock."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is made for it and gone afterwards.

    A process that is killed leaves the file, but no lock. Where the file system has no locks, there is none.

    Raises:
        LockedError: it is held already.
        OSError: the file cannot be made.
    """
    descriptor = _acquire(path)
    try:
        yield
    finally:
        if sys.platform == "win32":
            os.close(descriptor)  # Windows removes no file that is open
            with suppress(OSError):  # another process may have opened it meanwhile
                path.unlink()
        else:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in _HELD_BY_ANOTHER:
                os.close(descriptor)
                raise LockedError(f"{path} is locked") from error
        if _is_still_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # whoever held it has removed the file since it was opened


def _is_still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
