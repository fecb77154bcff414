"""The adapter `caller`: whoever is elected makes the call itself, in its own process.

The contract says what the target promises, as every contract does; `attempt_deadline_seconds` is
the lease of an election. What workers can do for such an effect follows from what stands here:
with `http` they can look, and send an idempotent effect again under the same key; with a
registered probe they can look; with neither they can do nothing but wait for a caller or a person.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from effect_contracts.expressions import PositiveSeconds
from effect_contracts.http_settings import HttpSettings
from effect_contracts.section import Section


class CallerSettings(Section):
    """A target that the caller itself calls.

    Attributes:
        target: a stable name of the target, as its host; with the account it is its identity.
        lease_seconds_max: how long one election may be held in all, by extensions of its lease;
            absent, the lease is not extended.
        probe: the look-up that a worker makes, by its name in the worker's registry of probes
            (`effect-broker worker --probes module:registry`).
        http: how a worker reaches the same target, as in a contract of the kind `http`: to look
            with its probe, and to send an idempotent effect again when its caller was lost.
    """

    kind: Literal["caller"]
    target: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.:_-]{0,252}$")]
    lease_seconds_max: PositiveSeconds | None = None
    probe: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")] | None = None
    http: HttpSettings | None = None

    @property
    def probes(self) -> bool:
        """Whether a worker can look."""
        return self.probe is not None or (self.http is not None and self.http.probe is not None)
