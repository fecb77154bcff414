"""How each mode treats keys and look-ups: who de-duplicates, who can be asked, who lies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from effect_broker.proof.target.client import TargetClient

# Who gives up soon waiting for an answer, and not while it connects or writes.
BRIEF = httpx.Timeout(30.0, read=0.1)


def charge(
    http: httpx.Client, key: str | None = "k1", *, amount: int = 500, reference: str | None = None
) -> httpx.Response:
    body: dict[str, object] = {"amount": amount}
    if reference is not None:
        body["reference"] = reference
    headers = {} if key is None else {"Idempotency-Key": key}
    return http.post("/charges", json=body, headers=headers)


def found(http: httpx.Client, key: str) -> list[str]:
    return [each["id"] for each in http.get("/charges", params={"key": key}).json()["data"]]


def test_dedupe_replays_the_first_answer(target: TargetClient, http: httpx.Client) -> None:
    first, second = charge(http), charge(http)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert (second.status_code, second.content) == (first.status_code, first.content)
    view = target.ledger(key="k1")
    assert (view.arrivals, view.effects) == (2, 1)
    assert (view.keys, len(view.body_digests)) == (["k1"], 1)


def test_dedupe_replays_what_the_client_never_saw(target: TargetClient, http: httpx.Client) -> None:
    target.script("commit;status(504)")
    assert charge(http).status_code == 504
    second = charge(http)
    assert (second.status_code, second.json()["id"]) == (201, "ch_000001")
    assert second.headers["idempotent-replayed"] == "true"
    assert target.ledger().effects == 1


def test_dedupe_of_concurrent_requests_makes_one_effect(
    target: TargetClient, http: httpx.Client
) -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: charge(http), range(10)))
    assert {answer.json()["id"] for answer in answers} == {"ch_000001"}
    view = target.ledger()
    assert (view.arrivals, view.effects) == (10, 1)


def test_dedupe_is_by_kind_and_key(target: TargetClient, http: httpx.Client) -> None:
    charge(http, "a")
    charge(http, "b")
    http.post("/objects/tickets", json={}, headers={"Idempotency-Key": "a"})
    assert target.ledger().effects == 3


@pytest.mark.parametrize(("drift", "status"), [("conflict", 409), ("bad_request", 400)])
def test_a_drifted_request_under_a_known_key_is_refused(
    target: TargetClient, http: httpx.Client, drift: str, status: int
) -> None:
    target.set_mode("charges", "dedupe", drift=drift)
    charge(http)
    refused = charge(http, amount=501)
    assert (refused.status_code, refused.json()["error"]) == (status, "idempotency_error")
    assert target.ledger().effects == 1
    assert len(target.ledger().body_digests) == 2


def test_a_careless_target_replays_over_drift(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("charges", "dedupe", drift="replay")
    charge(http)
    assert charge(http, amount=501).json()["amount"] == 500


def test_a_key_is_forgotten_after_its_retention(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("charges", "dedupe", ttl_seconds=60.0)
    first = charge(http).json()["id"]
    target.advance_clock(50)
    assert charge(http).json()["id"] == first
    target.advance_clock(10)
    second = charge(http)
    assert "idempotent-replayed" not in second.headers
    assert second.json()["id"] != first
    assert target.ledger(key="k1").effects == 2


def test_an_in_flight_key_is_answered_in_progress(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("charges", "dedupe", in_flight=True, retry_after_seconds=3)
    target.script("hold;commit")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(charge, http)
        target.wait_held(1)
        early = charge(http)
        assert (early.status_code, early.json()["error"]) == (409, "in_progress")
        assert early.headers["retry-after"] == "3"
        target.release()
        assert first.result().status_code == 201
    assert charge(http).headers["idempotent-replayed"] == "true"
    assert target.ledger().effects == 1


def test_a_lost_answer_is_not_in_flight(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("charges", "dedupe", in_flight=True)
    target.script("commit;hang")
    with pytest.raises(httpx.ReadTimeout):
        http.post(
            "/charges", json={"amount": 500}, headers={"Idempotency-Key": "k1"}, timeout=BRIEF
        )
    assert charge(http).status_code == 201
    target.release()


def test_a_key_is_forgotten_with_a_client_that_has_gone(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "forget_unheard")
    assert charge(http).json() == charge(http).json()
    target.script("commit;hold")
    with pytest.raises(httpx.ReadTimeout):
        http.post(
            "/charges", json={"amount": 500}, headers={"Idempotency-Key": "k2"}, timeout=BRIEF
        )
    target.wait_held(1)
    target.release()
    assert charge(http, "k2").json()["id"] == "ch_000003"
    assert target.ledger(key="k2").effects == 2


def test_keys_race_where_requests_overlap_and_nowhere_else(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "racing")
    assert charge(http, "a").json()["id"] == charge(http, "a").json()["id"]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: charge(http, "b"), range(10)))
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) > 1
    assert charge(http, "b").json()["id"] in ids
    assert target.ledger(key="b").effects == len(ids)


def test_lookup_never_deduplicates_and_finds_by_key(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "lookup")
    first, second = charge(http, "k1", reference="r1"), charge(http, "k1", reference="r1")
    assert first.json()["id"] != second.json()["id"]
    assert found(http, "r1") == found(http, "k1") == ["ch_000001", "ch_000002"]
    assert found(http, "r2") == []
    assert target.ledger(key="r1").effects == 2


def test_a_look_up_sees_an_effect_after_the_lag_only(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "lookup", search_lag_seconds=60.0)
    made = charge(http, reference="r1").json()["id"]
    assert found(http, "r1") == []
    target.advance_clock(59)
    assert found(http, "r1") == []
    target.advance_clock(1)
    assert found(http, "r1") == [made]
    assert http.get(f"/objects/charges/{made}").status_code == 200


def test_neither_never_deduplicates_and_never_answers_a_look_up(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "neither")
    target.set_mode("refunds", "neither")
    target.set_mode("notes", "neither")
    ids = {charge(http, "k1", reference="r1").json()["id"] for _ in range(5)}
    assert len(ids) == 5
    assert target.ledger(key="k1").effects == 5
    for path in ("/charges?key=k1", "/charges?reference=r1", "/charges", "/charges/ch_000001"):
        assert http.get(path).status_code == 404
    for _ in range(2):
        assert http.post("/charges/ch_000001/refund", json={}).status_code == 201
        put = http.put("/objects/notes/n1", content=b"x", headers={"If-None-Match": "*"})
        assert put.status_code in (200, 201)
    assert target.ledger(kind="refunds").effects == 2
    assert target.ledger(kind="notes").effects == 2


def test_ignore_key_breaks_the_promise_of_idempotency(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "ignore_key")
    assert charge(http).json()["id"] != charge(http).json()["id"]
    assert target.ledger(key="k1").effects == 2


def test_store_errors_replays_a_stored_error(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("charges", "store_errors")
    target.script("status(402,card_declined)")
    for replayed in (None, "true"):
        answer = charge(http)
        assert (answer.status_code, answer.json()["error"]) == (402, "card_declined")
        assert answer.headers.get("idempotent-replayed") == replayed
    assert target.ledger().effects == 0


def test_store_errors_hides_a_committed_effect_behind_its_error(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "store_errors")
    target.script("commit;status(500)")
    assert [charge(http).status_code for _ in range(3)] == [500, 500, 500]
    assert target.ledger().effects == 1


def test_plain_dedupe_stores_no_error(target: TargetClient, http: httpx.Client) -> None:
    target.script("status(500)")
    assert charge(http).status_code == 500
    assert charge(http).status_code == 201


def test_conflict_existing_names_the_object_that_exists(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("charges", "conflict_existing")
    target.script("commit;status(503)")
    assert charge(http).status_code == 503
    refused = charge(http)
    assert refused.status_code == 409
    assert refused.json()["error"] == "exists"
    assert refused.json()["resource_id"] == "ch_000001"


def test_count_only_counts_without_rows(target: TargetClient, http: httpx.Client) -> None:
    target.set_mode("bench", "count_only")
    for n in range(5):
        answer = http.post("/objects/bench", json={}, headers={"Idempotency-Key": f"k{n % 3}"})
        assert answer.status_code == 201
    view = target.ledger(kind="bench")
    assert (view.arrivals, view.effects, view.distinct_keys_counted) == (5, 5, 3)
    assert view.arrival_rows == []
    assert target.wait_arrivals(5, kind="bench").arrivals == 5


def test_a_mode_is_switched_at_run_time(target: TargetClient, http: httpx.Client) -> None:
    charge(http)
    target.set_mode("charges", "neither")
    assert charge(http).json()["id"] == "ch_000002"
    target.set_mode("charges", "dedupe")
    assert charge(http).json()["id"] == "ch_000001"
