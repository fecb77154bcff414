"""All guards of the protocol, by name: this module brings their parts together."""

from __future__ import annotations

from collections.abc import Sequence

from effect_broker.proof.simulation import (
    guards_deciding,
    guards_identity,
    guards_sending,
    guards_telling,
)
from effect_broker.proof.simulation.guard import GUARDS, Guard, without

__all__ = ["GUARDS", "PARTS", "Guard", "simulated_guards", "without"]

# Each part registers its guards when it is imported.
PARTS = (guards_sending, guards_deciding, guards_telling, guards_identity)


def simulated_guards() -> Sequence[Guard]:
    """Return the guards that a simulation can lose."""
    return [guard for guard in GUARDS.values() if guard.scope is not None]
