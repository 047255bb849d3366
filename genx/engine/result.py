"""What a run came to as an object for programs. No torch."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genx.engine.continuation import Summary


def result_object(summary: "Summary", text: str | None) -> dict[str, Any]:
    """One run for programs; a file of prompts has one such object a row."""
    return {
        "id": None,
        "row": 0,
        "text": text,
        "ids": list(summary.ids),
        "finish_reason": str(summary.finish_reason),
        "prompt_tokens": summary.prompt_tokens,
        "new_tokens": len(summary.ids),
        "seed": summary.seed,
        "timings": {
            "ttft_s": summary.ttft,
            "prefill_tps": summary.prefill_tps,
            "decode_tps": summary.decode_tps,
        },
        "error": None if summary.error is None else str(summary.error),
    }


def as_json_line(value: object) -> str:
    """JSON on one line, UTF-8 as it is but for control characters, which no terminal or log should obey."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text) + "\n"
