"""The answer to a row as an object. No torch."""

from typing import Any

from genx.engine.continuation import FinishReason, Summary
from genx.engine.result import result_object
from genx.engine.rows.plan import Row
from genx.errors import GenxError

# Names that answers use for themselves, whether this one has them or not.
_OWN = frozenset(
    "id row file sample text ids finish_reason prompt_tokens new_tokens seed timings error key".split()  # noqa: SIM905
)
_PASSED_PREFIX = "input_"


def answer_object(row: Row, summary: Summary, key: str | None) -> dict[str, Any]:
    """The answer to a row: what `genx run --json` gives, whose row it is, its key, and the fields that pass through.

    A field that has the name of one of the answer's own is called `input_` and that name.
    """
    # A row that never began has no text, not an empty one.
    text = None if summary.error is not None and not summary.ids else summary.text
    result = result_object(summary, text)
    answer = {"id": row.id, "row": row.record.number}
    if row.file is not None:
        answer["file"] = row.file
    if row.sample is not None:
        answer["sample"] = row.sample
    answer |= {name: value for name, value in result.items() if name not in answer}
    answer["key"] = key
    for name, value in row.passed.items():
        while name in answer or name in _OWN:
            name = _PASSED_PREFIX + name
        answer[name] = value
    return answer


def failed_summary(error: str, prompt_tokens: int = 0) -> Summary:
    """What a row comes to that never begins."""
    return Summary(
        text="",
        ids=(),
        finish_reason=FinishReason.ERROR,
        prompt_tokens=prompt_tokens,
        seed=None,
        ttft=None,
        prefill_tps=None,
        decode_tps=None,
        peak_memory=None,
        cache_bytes=0,
        error=GenxError(error),
    )
