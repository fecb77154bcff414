"""Who asks, how often, or what may be seen."""

from __future__ import annotations

from effect_contracts.errors.base import EffectError
from effect_contracts.problem_codes import ProblemCode


class AccessError(EffectError):
    """The caller may not do this, or not now."""


class Unauthenticated(AccessError):
    """No API key, or one that is unknown or revoked: the three look the same on purpose."""

    code = ProblemCode.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("Send a valid API key as 'Authorization: Bearer <key>'.")


class Forbidden(AccessError):
    """The key is good and lacks the named scope."""

    code = ProblemCode.FORBIDDEN

    def __init__(self, *, scope: str | None = None) -> None:
        wanted = "" if scope is None else f": it lacks the scope '{scope}'"
        super().__init__(f"This API key may not do this{wanted}.", extras={"scope": scope})


class SecondPersonRequired(AccessError):
    """Whoever asked for it, or said it first, cannot be the one who agrees."""

    code = ProblemCode.SECOND_PERSON_REQUIRED

    def __init__(self) -> None:
        super().__init__("This takes the credential of another person; nothing was changed.")


class TenantDisabled(AccessError):
    """The tenant is switched off; nothing is accepted or dispatched for it."""

    code = ProblemCode.TENANT_DISABLED

    def __init__(self) -> None:
        super().__init__("This tenant is disabled.")


class NotFound(AccessError):
    """It does not exist, or belongs to another tenant: the two look the same on purpose."""

    code = ProblemCode.NOT_FOUND

    def __init__(self) -> None:
        super().__init__("There is no such resource.")


class RateLimited(AccessError):
    """Too many requests; come again in `retry_after_seconds`."""

    code = ProblemCode.RATE_LIMITED

    def __init__(self, *, retry_after_seconds: int) -> None:
        super().__init__(
            f"Too many requests; try again in {retry_after_seconds} s.",
            extras={"retry_after_seconds": retry_after_seconds},
        )
