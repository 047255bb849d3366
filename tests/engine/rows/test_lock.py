"""One writer for a file, whatever happened to the one before."""

import multiprocessing
import os
import sys
import threading
from pathlib import Path

import pytest

from genx.engine.rows.lock import LockedError, locked


def test_the_second_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with locked(path):
        with pytest.raises(LockedError), locked(path):
            pass
        assert path.exists()
    assert not path.exists()
    with locked(path):
        pass


def _hold_and_die(path: Path) -> None:
    with locked(path):
        os._exit(9)


def test_a_process_that_dies_leaves_its_file_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(path,))
    process.start()
    process.join(60)
    assert (process.exitcode, path.exists()) == (9, True)
    with locked(path):
        pass
    assert not path.exists()


def test_no_two_hold_it_while_its_file_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    holders, most, taken = 0, 0, 0

    def take_turns() -> None:
        nonlocal holders, most, taken
        for _ in range(200):
            try:
                with locked(path):
                    holders += 1
                    most = max(most, holders)
                    taken += 1
                    holders -= 1
            except LockedError:
                pass

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert (holders, most) == (0, 1)
    assert taken > 0
