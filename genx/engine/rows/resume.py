"""What a run that goes on finds done, and whether that was done under the same settings. No torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from genx.engine.rows.formats import StoredRow
from genx.engine.rows.identity import RowIdentity
from genx.engine.rows.plan import Row
from genx.errors import UsageError


@dataclass(frozen=True)
class Resumption:
    """What is done: the stored row of each place, how many rows there are in all, and how the file goes on.

    `must_rewrite` says that rows which are missing have their place before, or instead of, rows in the file.
    """

    kept: Mapping[int, StoredRow] = field(default_factory=dict)
    rows: int = 0
    must_rewrite: bool = False

    @property
    def failed(self) -> int:
        """How many of the kept rows have an error."""
        return sum(row.has_failed for row in self.kept.values())


def match_rows(
    rows: Iterable[Row | None],
    in_file: Sequence[StoredRow],
    parked: Sequence[StoredRow],
    keys: Callable[[Row], Sequence[str | None]],
    *,
    retry_errors: bool,
    in_order: bool,
) -> Resumption:
    """Match the rows of a run with those that an earlier one has left.

    Args:
        rows: of this run.
        in_file: of the file of answers, in its order.
        parked: of the file beside it, where rows wait for their predecessors or for the file to be rewritten.
        keys: the keys that a row of this run may have.
        retry_errors: rows that failed are to be done again.
        in_order: answers stand in the order of rows.

    Raises:
        UsageError: a stored row was made from another prompt, under other settings or by another model, or is none of
            this run's.
    """
    found: dict[RowIdentity, StoredRow] = {}
    for stored in in_file:
        if found.setdefault(stored.identity, stored) is not stored:
            raise UsageError(f"{_name(stored)} is there twice; give another -o, or --overwrite")
    superseded = False
    for stored in parked:  # a later one is of a later run
        earlier = found.get(stored.identity)
        if earlier is None or earlier.has_failed or earlier.path == stored.path:
            found[stored.identity] = stored
            superseded |= earlier is not None and earlier.path != stored.path
    kept: dict[int, StoredRow] = {}
    count = 0
    for row in rows:
        if row is None:
            continue
        count += 1
        stored_row = found.pop(row.identity, None)
        if stored_row is None:
            continue
        if stored_row.has_failed and retry_errors:
            superseded = True
            continue
        if not stored_row.has_failed:
            _check_key(stored_row, keys(row))
        kept[row.place] = stored_row
    if found:
        stray = next(iter(found.values()))
        raise UsageError(f"{_name(stray)} is no row of the input; give the same input, another -o, or --overwrite")
    places = {stored.identity: place for place, stored in kept.items()}
    appended = [places.get(stored.identity) for stored in in_file]
    waits = len(kept) > len(in_file)
    fits = appended == list(range(len(in_file))) if in_order else not waits
    return Resumption(kept, count, must_rewrite=superseded or not fits)


def _check_key(stored: StoredRow, allowed: Sequence[str | None]) -> None:
    if stored.key in allowed:
        return
    prompts = [key.split("-")[0] for key in allowed if key is not None]
    same_prompt = stored.key is not None and stored.key.split("-")[0] in prompts
    what = "under other settings or by another model" if same_prompt else "from another prompt"
    raise UsageError(
        f"{_name(stored)} was made {what}; --resume goes on with the same ones only: "
        "give them, another -o, or --overwrite to start afresh"
    )


def _name(stored: StoredRow) -> str:
    identity = stored.identity
    row = f"row {identity.number}" if identity.id is None else f"the row with id {identity.id!r}"
    of = f" of {identity.source}" if identity.source is not None else ""
    return f"{stored.path}: {row}{of}"
