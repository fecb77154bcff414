"""Requests that no well-meaning client would write, sent as they stand."""

from __future__ import annotations

from typing import Any

import httpx

from field_cases.cases import Case, Offer

JSON = {"content-type": "application/json"}


def post_raw(case: Case, body: bytes) -> httpx.Response:
    """Submit a body byte for byte."""
    return case.broker.http.post("/v1/effects", content=body, headers=JSON)


def post_arguments(offer: Offer, order: str, arguments: str) -> httpx.Response:
    """Submit with the arguments written as they are given here."""
    head = f'{{"operation_key":"{offer.key(order)}","tool":"{offer.tool}","arguments":'
    return post_raw(offer.case, f"{head}{arguments}}}".encode())


def refused(answer: httpx.Response, code: str, status: int = 422) -> dict[str, Any]:
    """The problem body of a refusal, which says nothing of the value that was refused."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, body
    return body


def rows_of(case: Case, tool: str) -> int:
    """How many intents of a tool stand."""
    return int(
        case.scene.value("SELECT count(*) FROM effect_broker.effect_intents WHERE tool = %s", tool)
    )
