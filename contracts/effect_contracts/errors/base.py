"""The root of the errors: what each of them carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

from effect_contracts.problem_codes import ProblemCode, status_of

Extra: TypeAlias = str | int | list[dict[str, str]]


class EffectError(Exception):
    """The root of every error that the broker raises on purpose.

    `detail` is a sentence of this source tree; `field` is a JSON Pointer into what the caller
    sent; `extras` become further members of the problem body.
    """

    code: ClassVar[ProblemCode]

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        extras: Mapping[str, Extra | None] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.extras = {name: v for name, v in (extras or {}).items() if v is not None}

    @property
    def title(self) -> str:
        """The code in words: the same for every occurrence, as RFC 9457 asks."""
        return self.code.value.replace("_", " ").capitalize()

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code)

    @property
    def retry_after_seconds(self) -> int | None:
        """What a `Retry-After` header should say, if the error knows."""
        seconds = self.extras.get("retry_after_seconds")
        return seconds if isinstance(seconds, int) else None

    def __str__(self) -> str:
        place = f" (at {self.field or 'the root'})" if self.field is not None else ""
        if self.field is None and "offset" in self.extras:
            place = f" (at byte {self.extras['offset']})"  # where there is no value yet
        return f"{self.code}: {self.detail}{place}"

    def __reduce__(self) -> tuple[object, ...]:
        # The leaves differ in their constructors, so the default way to copy and pickle fails.
        return _rebuilt, (type(self), self.detail, self.field, self.extras)


def _rebuilt(
    leaf: type[EffectError], detail: str, field: str | None, extras: Mapping[str, Extra]
) -> EffectError:
    error = leaf.__new__(leaf)
    EffectError.__init__(error, detail, field=field, extras=extras)
    return error
