"""What a contract may say of how hard its target is driven, and where that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from effect_contracts.errors import ContractProblem
from effect_contracts.pacing import Limits, burst_of
from effect_contracts.section import Section

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

# Each grant under a limit waits for the one before it to be committed, so that no more than some
# hundreds are granted in a second; a greater number would promise nothing.
PER_SECOND_MAX: Final = 1000.0
# One attempt a day.
PER_SECOND_MIN: Final = 1 / 86_400
CONCURRENCY_MAX: Final = 10_000


class LimitSettings(Section):
    """How hard the target is driven at most, by all workers and for all tenants together.

    Attributes:
        concurrency_max: attempts that are open at once. Absent: no such limit.
        per_second_max: attempts begun per second. Absent: no such limit.
        burst_max: attempts that may begin at once after a quiet time. Absent: what
            `per_second_max` allows in a tenth of a second, at least one.
    """

    concurrency_max: Annotated[int, Field(ge=1, le=CONCURRENCY_MAX)] | None = None
    per_second_max: (
        Annotated[float, Field(ge=PER_SECOND_MIN, le=PER_SECOND_MAX, allow_inf_nan=False)] | None
    ) = None
    burst_max: Annotated[int, Field(ge=1, le=1000)] | None = None


def limits_of(settings: LimitSettings | None) -> Limits | None:
    """Return the limits that the settings set, None where they set none."""
    if settings is None:
        return None
    rate = settings.per_second_max
    burst = 1 if rate is None else settings.burst_max or burst_of(rate)
    return Limits(settings.concurrency_max, rate, burst)


def broken_limit_rules(
    document: ContractDocument, settings: LimitSettings
) -> Iterator[ContractProblem]:
    """Yield every broken rule."""
    if document.adapter.kind == "caller":
        yield ContractProblem(
            "/limits",
            "what callers perform is sent when they send it, and nothing here can hold it back: "
            "leave this out",
        )
    if settings.concurrency_max is None and settings.per_second_max is None:
        yield ContractProblem(
            "/limits", "state concurrency_max, per_second_max or both, or leave this out"
        )
    if settings.burst_max is not None and settings.per_second_max is None:
        yield ContractProblem(
            "/limits/burst_max", "a burst is of a rate: state per_second_max, or leave this out"
        )
