"""A contract document is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effect_contracts.errors.base import EffectError
from effect_contracts.problem_codes import ProblemCode


@dataclass(frozen=True, slots=True)
class ContractProblem:
    """One broken rule of a contract document: where, and a sentence on how to mend it."""

    field: str
    message: str


class ContractError(EffectError):
    """A contract document cannot be used."""


class ContractInvalid(ContractError):
    """The document breaks rules; all of them are listed, in the order of the document."""

    code = ProblemCode.CONTRACT_INVALID

    def __init__(self, problems: Sequence[ContractProblem]) -> None:
        assert problems, "an invalid contract has at least one problem"
        first = problems[0]
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(
            first.message + more,
            field=first.field,
            extras={"problems": [{"field": p.field, "message": p.message} for p in problems]},
        )


class ContractConflict(ContractError):
    """The same name and version is stored with another digest."""

    code = ProblemCode.CONTRACT_CONFLICT

    def __init__(self) -> None:
        super().__init__(
            "This contract name and version is stored with other content; "
            "raise the version, a published one never changes."
        )
