"""The check that rows are what they are alone finds one that is not."""

import torch

from genx.engine.rows.active_row import Job
from genx.engine.rows.identity import RowIdentity
from genx.engine.rows.plan import Row
from genx.engine.rows.records import Record
from genx.engine.rows.run import Remembered
from genx.engine.rows.sources import InputFormat, Source
from genx.engine.rows.verify import differences
from genx.models.llama import Llama
from tests.engine.rows.conftest import alone, job
from tests.engine.rows.test_batch import SMALL


def remembered(one: Job, ids: tuple[int, ...]) -> Remembered:
    source = Source("p.txt", InputFormat.TXT, lambda: open("nowhere", "rb"))  # noqa: PTH123, SIM115
    row = Row(0, Record(source, 7), RowIdentity(None), None, None)
    return Remembered(row, one, ids)


def test_a_row_that_differs_is_named_with_its_first_other_token() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL).eval()
    one = job(0, [1, 2, 3], max_new_tokens=5, do_sample=True, seed=3)
    ids = alone(model, one)
    other = (*ids[:3], ids[3] + 1, ids[4])
    for batch_invariant in (False, True):
        found = list(
            differences(model, [remembered(one, ids), remembered(one, other)], batch_invariant=batch_invariant)
        )
        assert found == ["row 7, generated alone, differs from its token 4 on"]
