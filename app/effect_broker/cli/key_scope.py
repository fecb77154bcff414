"""What `doctor` says of recent operation keys: by tenant and tool, in shapes, never the keys.

Only a hint: nothing is refused because of a key's looks. Keys may hold names of persons, so a line
has the commonest shape of what it is about and nothing of a key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from effect_broker.cli.checks import Findings, ok, warn
from effect_broker.store.diagnosis import RecentKey
from effect_contracts.counting import counted
from effect_contracts.key_smells import MEANINGS, Smell, key_shape, key_smells

CHECK: Final = "key_scope"
PAGE: Final = "docs/operation-keys.md"
# A fleet of tenants with one bad client would bury every other finding.
_LINES_MAX: Final = 12
_REMEDY: Final = (
    f"name the business intent: its object and what is done to it, as in order-<n>:charge ({PAGE})"
)


@dataclass(frozen=True, slots=True)
class KeyScope:
    """One smell among the recent keys of a tenant's tool.

    Attributes:
        keys: how many have it, of `sampled`.
        shape: the commonest among them.
    """

    tenant: str
    tool: str
    smell: Smell
    keys: int
    sampled: int
    shape: str


def key_scopes(recent: Sequence[RecentKey]) -> tuple[KeyScope, ...]:
    """Return what smells in a sample, the most keys first."""
    sampled = Counter((key.tenant, key.tool) for key in recent)
    shapes: dict[tuple[str, str, Smell], Counter[str]] = defaultdict(Counter)
    for key in recent:
        for smell in key_smells(key.operation_key):
            shapes[key.tenant, key.tool, smell][key_shape(key.operation_key)] += 1
    scopes = [
        KeyScope(
            tenant, tool, smell, counted.total(), sampled[tenant, tool],
            counted.most_common(1)[0][0],
        )
        for (tenant, tool, smell), counted in shapes.items()
    ]  # fmt: skip
    return tuple(sorted(scopes, key=lambda s: (-s.keys, s.tenant, s.tool, s.smell)))


def key_scope_findings(recent: Sequence[RecentKey]) -> Findings:
    """Judge a sample of recent operation keys by their looks."""
    scopes = key_scopes(recent)
    for scope in scopes[:_LINES_MAX]:
        yield warn(
            CHECK,
            f"{scope.keys} of {counted(scope.sampled, 'recent operation key')} of {scope.tenant} "
            f"for {scope.tool}: such keys {MEANINGS[scope.smell]}. Shape: {scope.shape}",
            _REMEDY,
        )
    if len(scopes) > _LINES_MAX:
        rest = scopes[_LINES_MAX:]
        yield warn(
            CHECK,
            f"looking wrong besides: {counted(sum(scope.keys for scope in rest), 'key')} of "
            f"{counted(len({(scope.tenant, scope.tool) for scope in rest}), 'tool')}",
            _REMEDY,
        )
    if not scopes:
        yield ok(CHECK, f"of {counted(len(recent), 'recent operation key')}, none looks wrong")
