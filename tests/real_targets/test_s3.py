"""The adapter `s3` at moto: a name is taken once, and whose object stands there is read from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from adapter_calls import KEY, dispatch_call, merged, probe_call
from effect_adapters.base import Answer, Finding
from effect_adapters.s3 import S3Adapter
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import CODE_ALREADY_EXISTS, Outcome, Verdict
from peers import Arrival, answer, peer, replying
from real_targets.programs import Moto
from real_targets.relay import carried, relay

BUCKET, OBJECT = "acme-exports", "exports/daily/2026-10-05.json"
EXPORT: dict[str, Any] = {"report": "daily", "day": "2026-10-05", "rows": [[1, "ä"], [2, "b"]]}
ADAPTER = S3Adapter(lambda _reference: "key")


def _contract(origin: str, **changes: Any) -> ContractDocument:
    value = yaml.safe_load(catalog_texts()["s3-export"])
    value["adapter"]["endpoint"] = origin
    return ContractDocument.parse_yaml(yaml.safe_dump(merged(value, changes)))


async def _send(document: ContractDocument, key: str = KEY) -> Answer:
    wire = ADAPTER.render(document, EXPORT, key)
    return await ADAPTER.dispatch(dispatch_call(document, wire))


async def _look(document: ContractDocument, **changes: Any) -> Finding:
    return await ADAPTER.probe(probe_call(document, arguments={**EXPORT, **changes}))


@pytest.fixture
def bucket(moto: Moto) -> Iterator[Any]:
    """The SDK's client of an empty bucket."""
    moto.reset()
    s3 = moto.sdk("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": Moto.REGION})
    yield s3
    s3.close()


async def test_an_object_is_created_once_and_found_by_its_metadata(moto: Moto, bucket: Any) -> None:
    document = _contract(moto.origin)
    before = await _look(document)
    made = await _send(document)
    again = await _send(document)
    found = await _look(document)
    assert (before.verdict, before.code) == (Verdict.NOT_COMMITTED, "absent_status_404")
    assert made.outcome is Outcome.COMMITTED
    assert (again.outcome, again.code) == (Outcome.REJECTED, CODE_ALREADY_EXISTS)
    assert found.verdict is Verdict.COMMITTED
    assert found.external_ids == (made.external_id,)
    assert found.receipt_fields["etag"] == made.receipt_fields["etag"]
    stored = bucket.get_object(Bucket=BUCKET, Key=OBJECT)
    assert (
        stored["Body"].read()
        == '{"day":"2026-10-05","report":"daily","rows":[[1,"ä"],[2,"b"]]}'.encode()
    )
    assert stored["ContentType"] == "application/json"


async def test_a_lost_create_is_settled_by_looking(moto: Moto, bucket: Any) -> None:
    with relay(moto.port) as way:
        document = _contract(way.origin)
        way.losing = True
        lost = await _send(document)
        unheard = await _look(document)
        way.losing = False
        found = await _look(document)
        methods = [request.split(b" ")[0] for request in way.requests]
    assert (lost.outcome, unheard.verdict) == (Outcome.AMBIGUOUS, Verdict.UNKNOWN)
    assert found.verdict is Verdict.COMMITTED
    assert methods == [b"PUT", b"GET", b"GET"], "one request for each attempt and each look"


async def test_a_trial_breaks_the_connection_behind_its_request(moto: Moto, bucket: Any) -> None:
    ends: list[bytes] = []

    def script(arrival: Arrival) -> None:
        request = arrival.read_request()
        ends.append(arrival.sock.recv(1))
        carried(request, moto.port)

    with peer(script) as way:
        document = _contract(way.url)
        call = dispatch_call(document, ADAPTER.render(document, EXPORT, KEY))
        lost = await ADAPTER.dispatch(replace(call, hang_up=True))
    assert ends == [b""]
    assert (lost.outcome, lost.code) == (Outcome.AMBIGUOUS, "closed_without_answer")
    assert (await _look(_contract(moto.origin))).verdict is Verdict.COMMITTED


@pytest.mark.parametrize("metadata", [{}, {"effect-key": "somebody-else"}, None])
async def test_a_strangers_object_is_left_alone_and_is_a_mismatch(
    moto: Moto, bucket: Any, metadata: dict[str, str] | None
) -> None:
    body = b"" if metadata is None else b"theirs"
    bucket.put_object(Bucket=BUCKET, Key=OBJECT, Body=body, Metadata=metadata or {})
    document = _contract(moto.origin)
    refused = await _send(document)
    found = await _look(document)
    assert (refused.outcome, refused.code) == (Outcome.REJECTED, CODE_ALREADY_EXISTS)
    assert (found.verdict, found.code) == (Verdict.MISMATCH, "found_other")
    assert bucket.get_object(Bucket=BUCKET, Key=OBJECT)["Body"].read() == body


async def test_our_key_over_other_content_is_a_mismatch(moto: Moto, bucket: Any) -> None:
    document = _contract(moto.origin)
    await _send(document)
    other = await _look(document, rows=[])
    assert (other.verdict, other.code) == (Verdict.MISMATCH, "fields_disagree")


async def test_a_bucket_that_is_not_there_denies_nothing(moto: Moto, bucket: Any) -> None:
    document = _contract(moto.origin, adapter={"bucket": "acme-missing"})
    looked, sent = await _look(document), await _send(document)
    assert looked.verdict is Verdict.UNKNOWN
    assert (sent.outcome, sent.code) == (Outcome.RETRYABLE, "bucket_missing")


@pytest.mark.parametrize("data", ["NoSuchBucket", "", "NoSuchUpload"])
async def test_another_404_than_of_the_object_denies_nothing(data: str) -> None:
    body = f"<Error><Code>{data}</Code></Error>".encode() if data else b"<html>"
    with peer(replying(answer(404, body))) as running:
        finding = await _look(_contract(running.url))
    assert (finding.verdict, finding.code) == (Verdict.UNKNOWN, "unmatched_status_404")


async def test_an_object_that_was_deleted_in_a_bucket_with_versions_denies_nothing() -> None:
    """moto leaves out the header by which S3 tells of a delete marker, so it is scripted."""
    body = b"<Error><Code>NoSuchKey</Code></Error>"
    for headers, verdict in (
        (("x-amz-delete-marker: true",), Verdict.UNKNOWN),
        ((), Verdict.NOT_COMMITTED),
    ):
        with peer(replying(answer(404, body, headers=headers))) as running:
            assert (await _look(_contract(running.url))).verdict is verdict


def _error(status: int, name: str) -> bytes:
    return answer(status, f"<?xml version='1.0'?><Error><Code>{name}</Code></Error>".encode())


@pytest.mark.parametrize(
    ("data", "outcome", "code"),
    [
        (_error(409, "ConditionalRequestConflict"), "retryable", "conflict"),
        (_error(503, "SlowDown"), "retryable", "throttled"),
        (_error(403, "RequestTimeTooSkewed"), "retryable", "clock_skewed"),
        (_error(403, "AccessDenied"), "retryable", "access_denied"),
        (_error(400, "EntityTooLarge"), "rejected", "object_too_large"),
        (_error(400, "Unheard"), "rejected", "refused"),
        (_error(500, "InternalError"), "ambiguous", "unmatched_status_500"),
        (answer(503), "ambiguous", "unmatched_status_503"),
        (answer(412), "ambiguous", "unmatched_status_412"),
        (answer(403, b"<html>"), "ambiguous", "unmatched_status_403"),
        (answer(200), "ambiguous", "success_header"),
        (answer(307), "ambiguous", "unmatched_status_307"),
    ],
)
async def test_an_answer_proves_what_the_service_itself_has_said(
    data: bytes, outcome: str, code: str
) -> None:
    with peer(replying(data)) as running:
        answered = await _send(_contract(running.url))
        assert running.requests == 1
        # The conditions of the write, and whose bucket it has to be.
        [request] = running.received
    assert (answered.outcome.value, answered.code) == (outcome, code)
    for header in (b"if-none-match: *", b"x-amz-expected-bucket-owner: 123456789012"):
        assert header in request.lower()


def test_a_name_from_arguments_leaves_neither_bucket_nor_host() -> None:
    document = _contract(
        "https://s3.example.com", arguments={"properties": {"day": {"pattern": "."}}}
    )
    for day in ("../../other", "..", "a/../../b", "x?versionId=1", "#"):
        arguments = {**EXPORT, "day": day}
        wire = ADAPTER.render(document, arguments, KEY).decode()
        assert "https://s3.example.com/acme-exports/exports/daily/" in wire
        path = json.loads(wire)["url"].partition("/acme-exports/exports/daily/")[2]
        assert path.endswith(".json")
        assert not set("/?#") & set(path)
    assert ADAPTER.identity(document) == "https://s3.example.com/acme-exports#123456789012"
