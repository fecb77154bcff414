"""The rules of a contract whose adapter is `caller`: what a lease may be, who looks, who sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from effect_contracts.caller_settings import CallerSettings
from effect_contracts.errors import ContractProblem
from effect_contracts.http_rules import broken_http_rules

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

_HERE = "/adapter"


def broken_caller_rules(
    document: ContractDocument, caller: CallerSettings
) -> list[ContractProblem]:
    """Return every broken rule."""
    problems = [*_lease(document, caller), *_one_look(caller)]
    if caller.http is not None:
        for problem in broken_http_rules(document, caller.http):
            # The rules of http speak of parts of the adapter; here it stands one level below.
            field = f"{_HERE}/http{problem.field.removeprefix(_HERE)}"
            problems.append(ContractProblem(field, problem.message))
    return problems


def _lease(document: ContractDocument, caller: CallerSettings) -> Iterator[ContractProblem]:
    longest, lease = caller.lease_seconds_max, document.attempt_deadline_seconds
    if longest is not None and longest <= lease:
        yield ContractProblem(
            "/adapter/lease_seconds_max",
            f"a lease lasts {lease:g} s already (attempt_deadline_seconds); give more, or leave "
            "this out where a lease is not to be extended",
        )


def _one_look(caller: CallerSettings) -> Iterator[ContractProblem]:
    if caller.probe is not None and caller.http is not None and caller.http.probe is not None:
        yield ContractProblem(
            "/adapter/probe", "adapter.http has a probe already; one look-up is the authority"
        )
    if caller.http is not None and caller.http.answers.accepted is not None:
        yield ContractProblem(
            "/adapter/http/answers/accepted",
            "a caller's operation has no reference that a worker could poll; leave it out",
        )
