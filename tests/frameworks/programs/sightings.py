"""What every program here prints: one line of JSON for each time that a framework ran the code.

A sighting has the scenario, the ids as the framework gave them, and the keys that the product makes
of them. A key that is refused is its reason with a question mark before it. Lines leave the process
at once, since some of these programs are killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from effect_broker.operation_keys import KeyRefused


def sighted(scenario: str, ids: dict[str, object], keys: dict[str, str]) -> None:
    """Print one sighting."""
    print(json.dumps({"scenario": scenario, "ids": ids, "keys": keys}), flush=True)


def key_or_refusal(make: Callable[[], str]) -> str:
    """Return the key, or the reason why there is none."""
    try:
        return make()
    except KeyRefused as refused:
        return f"?{refused.reason}"
