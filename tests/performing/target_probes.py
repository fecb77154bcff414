"""A registry of probes as a deployment would have one: it asks the target by our key."""

from __future__ import annotations

import os
from typing import Any

import httpx

from effect_adapters.caller import Finding, Probe, ProbeCall, Verdict


async def charge_by_key(call: ProbeCall) -> Finding:
    """Look for the charge of this key, and compare what it was for."""
    kind = call.document.tool.rpartition(".")[2]
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(
            f"{os.environ['PROBED_TARGET']}/objects/{kind}", params={"key": call.downstream_key}
        )
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]
    if not found:
        return Finding(Verdict.NOT_COMMITTED, "absent")
    assert isinstance(call.arguments, dict)
    agrees = len(found) == 1 and found[0]["order"] == call.arguments["order"]
    verdict = Verdict.COMMITTED if agrees else Verdict.MISMATCH
    return Finding(verdict, "found", tuple(str(one["id"]) for one in found))


PROBES: dict[str, Probe] = {"charge_by_key": charge_by_key}
