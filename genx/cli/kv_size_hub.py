"""One config.json from the Hugging Face hub, fetched only when it is asked for."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from genx.checkpoint.hub import parse_hub_id
from genx.errors import UsageError

_HUB = "https://huggingface.co"
_MAX_BYTES = 16 << 20
_TIMEOUT_SECONDS = 20


def fetch_config(model_id: str, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """The configuration of `owner/name` or `owner/name@revision`, from $HF_ENDPOINT or huggingface.co.

    Not through huggingface_hub, as models are: this is one small file, and that import takes longer than the answer.

    Raises:
        UsageError: the id is none, or the hub does not give it.
    """
    model = parse_hub_id(model_id)
    if model is None:
        raise UsageError(f"{model_id!r} is no id of the hub; allowed: OWNER/NAME or OWNER/NAME@REVISION")
    endpoint = environment.get("HF_ENDPOINT") or _HUB
    if not endpoint.startswith(("https://", "http://")):
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}; allowed: an http or https address")
    address = f"{endpoint.rstrip('/')}/{model.name}/resolve/{model.revision or 'main'}/config.json"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as reply:
            text = reply.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        advice = "download its config.json with your account" if error.code in (401, 403) else "check the id"
        raise UsageError(f"{address} answers {error.code} {error.reason}; {advice}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"{address} cannot be reached: {reason}; give a file instead") from error
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{address} has more than {_MAX_BYTES:,} bytes; allowed: a config.json")
    try:
        config = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{address} is not JSON; check the id") from error
    if not isinstance(config, dict):
        raise UsageError(f"{address} holds no JSON object; check the id")
    return config
