"""Owns what the target's API means: which request does what, and how keys are treated.

Synchronous and without sockets. The promises: an effect, and the answer that its key will be
given again, are one commit of the ledger; a kind in the mode `neither` is never de-duplicated and
never looked up, neither by key nor by name, precondition or business rule.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from effect_broker.proof.target.clock import TargetClock
from effect_broker.proof.target.faults import Commit, Ok, Operation, Partial, Plan, Status
from effect_broker.proof.target.ledger import Effect, Ledger
from effect_broker.proof.target.messages import (
    KEY_QUERY_FIELDS,
    Answer,
    BodyState,
    Json,
    Keys,
    Request,
    error_answer,
    json_answer,
    keys_of,
)
from effect_broker.proof.target.modes import Mode, id_prefix
from effect_broker.proof.target.routes import Route, route_of

PAGE_SIZE = 10
PAGE_SIZE_MAX = 100


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is in the ledger under the number `n`.

    Attributes:
        races: under `racing`: its key was looked up when it came, and was new.
        received_monotonic: when it came, by CLOCK_MONOTONIC. Numbers begin anew with each reset;
            a client may leave after the reset of its target, and this tells the two apart.
    """

    n: int
    request: Request
    route: Route
    keys: Keys
    races: bool = False
    received_monotonic: float = 0.0


class TargetService:
    """The API over one ledger and one clock."""

    def __init__(self, ledger: Ledger, clock: TargetClock) -> None:
        self.ledger = ledger
        self.clock = clock
        self._modes = ledger.modes()
        self._worked_on: dict[tuple[str, str], set[int]] = defaultdict(set)

    # -- settings --------------------------------------------------------------------------------

    def mode(self, kind: str) -> Mode:
        return self._modes.get(kind) or Mode()

    def set_mode(self, kind: str, mode: Mode) -> None:
        self.ledger.set_mode(kind, mode)
        self._modes[kind] = mode

    def reset(self) -> None:
        self.ledger.clear()
        self.clock.reset()
        self._modes.clear()

    # -- arrivals --------------------------------------------------------------------------------

    def keys(self, request: Request, route: Route) -> Keys:
        name = route.name if route.action == "put" else None
        return keys_of(request, self.mode(route.kind).key_fields, name)

    def receive(self, request: Request, plan: Plan) -> Arrival:
        """Put a request on disk before anything is done about it."""
        route = route_of(request)
        keys = self.keys(request, route)
        now = self.clock.now()
        came = self.clock.monotonic()
        n = self.ledger.record_arrival(request, route.kind, keys, plan.text, came, now)
        racing = self.mode(route.kind).mode == "racing" and request.mutating
        key = keys.any
        races = racing and key is not None and not self.ledger.stored_answer(route.kind, key)
        return Arrival(n, request, route, keys, races, came)

    def receive_broken(self, body_state: BodyState, plan: Plan, request: Request | None) -> None:
        """Note a connection that brought no whole request: cut by plan, or by the client."""
        request = request or Request("", "", (), b"", body_state)
        kind = route_of(request).kind if request.path else ""
        self.ledger.record_arrival(
            request, kind, Keys(None, None), plan.text, self.clock.monotonic(), self.clock.now()
        )

    def left(self, arrival: Arrival) -> None:
        """Note that the client did not stay for the whole answer."""
        self.ledger.record_departure(arrival.n, arrival.received_monotonic, self.clock.monotonic())

    @contextmanager
    def working_on(self, arrival: Arrival) -> Iterator[None]:
        """Mark the arrival's key as worked on, for kinds that answer ``in_progress``."""
        if not arrival.request.mutating or arrival.keys.any is None:
            yield
            return
        key = (arrival.route.kind, arrival.keys.any)
        self._worked_on[key].add(arrival.n)
        try:
            yield
        finally:
            self._worked_on[key].discard(arrival.n)
            if not self._worked_on[key]:
                del self._worked_on[key]

    # -- answers ---------------------------------------------------------------------------------

    def apply(self, arrival: Arrival, plan: Plan) -> Answer:
        """Do what the request asks, in the form that the plan gives the answer."""
        route = arrival.route
        if route.refusal is not None:
            return route.refusal
        if route.action == "poll":
            return self._poll(route.name)
        if arrival.request.mutating:
            return self._mutate(arrival, plan)
        if self.mode(route.kind).mode == "neither":
            return error_answer(404, "no_lookup", f"{route.kind} cannot be looked up")
        return self._get(route) if route.action == "get" else self._list(arrival)

    def unmade_answer(self, arrival: Arrival) -> Answer:
        """What a target says that confirms a request and has dropped it."""
        if not arrival.request.mutating:
            return self.apply(arrival, Plan("ok", "request", (), Ok()))
        kind = arrival.route.kind
        return json_answer(201, {"id": f"{id_prefix(kind)}_none", "kind": kind})

    def store_scripted(self, arrival: Arrival, status: Status) -> None:
        """Under `store_errors`, make a scripted error the answer that its key will get."""
        key = arrival.keys.any
        stores = self.mode(arrival.route.kind).mode == "store_errors"
        if stores and key is not None and arrival.request.mutating and status.code >= 400:
            answer = Answer(status.code, status.body, status.headers)
            self._store(arrival, key, answer)

    def unheard(self, arrival: Arrival) -> None:
        """Take note that the client has gone before its answer: `forget_unheard` forgets it."""
        kind, key = arrival.route.kind, arrival.keys.any
        if self.mode(kind).mode == "forget_unheard" and arrival.request.mutating and key:
            self.ledger.forget_answer(kind, key)

    # -- mutations -------------------------------------------------------------------------------

    def _mutate(self, arrival: Arrival, plan: Plan) -> Answer:
        mode = self.mode(arrival.route.kind)
        # The name in the path is no idempotency key: PUT has its own preconditions.
        key = arrival.keys.downstream if arrival.route.action == "put" else arrival.keys.any
        with self.ledger.transaction():
            if key is not None:
                known = self._answer_by_key(arrival, mode, key)
                if known is not None:
                    return known
            answer = self._perform(arrival, plan)
            stores = answer.status < 400 or mode.mode == "store_errors"
            if key is not None and mode.replays and stores:
                self._store(arrival, key, answer)
            return answer

    def _answer_by_key(self, arrival: Arrival, mode: Mode, key: str) -> Answer | None:
        kind = arrival.route.kind
        if mode.in_flight and mode.replays:
            earlier = self._worked_on.get((kind, key), set())
            if any(n < arrival.n for n in earlier):
                retry_after = ("retry-after", str(mode.retry_after_seconds))
                answer = error_answer(409, "in_progress", "the first request is still worked on")
                return answer.with_headers(retry_after)
        if mode.mode == "conflict_existing":
            existing = self.ledger.effects(kind, key)
            if existing:
                return error_answer(
                    409, "exists", "the object exists", resource_id=existing[0].object_id
                )
        if not mode.replays or arrival.races:
            return None
        stored = self.ledger.stored_answer(kind, key)
        if stored is None or (
            mode.ttl_seconds is not None and stored.stored_at + mode.ttl_seconds <= self.clock.now()
        ):
            return None
        if stored.request_digest != _request_digest(arrival.request) and mode.drift != "replay":
            return error_answer(
                409 if mode.drift == "conflict" else 400,
                "idempotency_error",
                "the key was used with another request",
            )
        return stored.answer.with_headers(("idempotent-replayed", "true"))

    def _store(self, arrival: Arrival, key: str, answer: Answer) -> None:
        self.ledger.store_answer(
            arrival.route.kind, key, _request_digest(arrival.request), answer, self.clock.now()
        )

    def _perform(self, arrival: Arrival, plan: Plan) -> Answer:
        match arrival.route.action:
            case "create":
                return self._create(arrival, plan)
            case "put":
                return self._put(arrival)
            case "refund":
                return self._refund(arrival)
            case "cancel":
                return self._cancel(arrival)
            case action:
                raise AssertionError(f"{action} changes nothing")

    def _create(self, arrival: Arrival, plan: Plan) -> Answer:
        amount = arrival.request.content.get("amount", 0)
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
            return error_answer(422, "invalid_amount", "amount is a whole number, 0 or more")
        commits = [step for step in plan.steps if isinstance(step, Commit)]
        match plan.ending:
            case Partial(items=items):
                return self._create_partly(arrival, items, committed=bool(commits))
            case Operation(outcome=outcome, running=running):
                made = self._add(arrival).object_id if commits else None
                kind = arrival.route.kind
                n = self.ledger.add_operation(kind, arrival.n, outcome, running, made)
                path = f"/operations/{_operation_id(n)}"
                body = {"operation_id": _operation_id(n), "operation": path, "status": "running"}
                return json_answer(202, body, ("location", path))
            case _:
                count = commits[0].items if commits else 1
                made_of_batch = [
                    self._add(arrival, item=item if count > 1 else None) for item in range(count)
                ]
                return self._created(made_of_batch[0])

    def _create_partly(
        self, arrival: Arrival, items: tuple[str, ...], *, committed: bool
    ) -> Answer:
        results: list[Json] = []
        for index, item in enumerate(items):
            result: Json = {"index": index, "status": item}
            if item == "ok" and committed:
                result["id"] = self._add(arrival, item=index).object_id
            elif item == "fail":
                result["error"] = "undeliverable"
            results.append(result)
        return json_answer(207, {"results": results})

    def _put(self, arrival: Arrival) -> Answer:
        kind, name = arrival.route.kind, arrival.route.name
        present = self.ledger.object(kind, name)
        if self.mode(kind).mode != "neither":
            if arrival.request.header("if-none-match") == "*" and present is not None:
                return error_answer(412, "exists", "it exists", resource_id=present.object_id)
            wanted = arrival.request.header("if-match")
            if wanted is not None and (present is None or wanted not in ("*", present.etag)):
                return error_answer(412, "stale", "the object is not the one that If-Match names")
        written = self._add(arrival, name=name, over=present)
        answer = self._created(written)
        return answer if present is None else Answer(200, answer.body, answer.headers)

    def _refund(self, arrival: Arrival) -> Answer:
        charge = self.ledger.object("charges", arrival.route.name)
        if charge is None:
            return error_answer(404, "not_found", "no such charge")
        total = int(charge.content.get("amount", 0))
        asked = arrival.request.content.get("amount")
        earlier = self._undone_by("refunds", f"charges/{charge.object_id}")
        refunded = sum(int(refund.content["amount"]) for refund in earlier)
        amount = total - refunded if asked is None else asked
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
            return error_answer(422, "invalid_amount", "amount is a whole number, 0 or more")
        spent = bool(earlier) and refunded >= total
        if self.mode("refunds").mode != "neither" and (spent or refunded + amount > total):
            return error_answer(409, "already_refunded", "more than was charged")
        content = {**arrival.request.content, "amount": amount, "charge": charge.object_id}
        name = f"charges/{charge.object_id}"
        return self._created(self._add(arrival, name=name, content=content))

    def _cancel(self, arrival: Arrival) -> Answer:
        of_kind = arrival.route.of_kind
        present = self.ledger.object(of_kind, arrival.route.name)
        if present is None:
            return error_answer(404, "not_found", f"no such object of {of_kind}")
        name = f"{of_kind}/{present.object_id}"
        if self.mode("cancellations").mode != "neither" and self._undone_by("cancellations", name):
            return error_answer(409, "already_cancelled", "it was cancelled before")
        content = {**arrival.request.content, "of": present.object_id}
        return self._created(self._add(arrival, name=name, content=content))

    def _undone_by(self, kind: str, name: str) -> list[Effect]:
        return self.ledger.effects_named(kind, name)

    def _add(
        self,
        arrival: Arrival,
        *,
        name: str | None = None,
        item: int | None = None,
        content: Json | None = None,
        over: Effect | None = None,
    ) -> Effect:
        kind = arrival.route.kind
        sequence = self.ledger.next_sequence(kind) if over is None else over.sequence
        return self.ledger.add_effect(
            kind,
            f"{id_prefix(kind)}_{sequence:06d}",
            sequence,
            arrival.keys,
            arrival.request.content if content is None else content,
            etag=f'"{arrival.request.body_digest[:32]}"',
            arrival_n=arrival.n,
            committed_at=self.clock.now(),
            name=name,
            item=item,
        )

    # -- reads -----------------------------------------------------------------------------------

    def _get(self, route: Route) -> Answer:
        found = self.ledger.object(route.kind, route.name)
        if found is None:
            return error_answer(404, "not_found", f"no such object of {route.kind}")
        etag = ("etag", found.etag)
        if found.name is not None and set(found.content) == {"body_text"}:
            stored = self.ledger.arrival(found.arrival_n)
            media_type = stored["headers"].get("content-type", "application/octet-stream")
            return Answer(200, stored["body"], (("content-type", media_type), etag))
        return json_answer(200, self._shown(found), etag)

    def _list(self, arrival: Arrival) -> Answer:
        kind, asked = arrival.route.kind, arrival.request.parameters
        limit = asked.get("limit", str(PAGE_SIZE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= PAGE_SIZE_MAX):
            return error_answer(400, "invalid_limit", f"limit is 1 to {PAGE_SIZE_MAX}")
        after: int | None = 0
        if "starting_after" in asked:
            after = self.ledger.first_effect_n(kind, asked["starting_after"])
        elif "page_token" in asked:
            after = self.ledger.first_effect_n(kind, asked["page_token"].removeprefix("after-"))
        if after is None:
            return error_answer(400, "invalid_page", "no such object to start after")
        key = next((asked[field] for field in KEY_QUERY_FIELDS if field in asked), None)
        seen_by = self.clock.now() - self.mode(kind).search_lag_seconds
        found = self.ledger.objects(kind, key, seen_by, after, int(limit) + 1)
        page, has_more = found[: int(limit)], len(found) > int(limit)
        body: Json = {"data": [self._shown(each) for each in page], "has_more": has_more}
        if has_more:
            body["next_page_token"] = f"after-{page[-1].object_id}"
        return json_answer(200, body)

    def _poll(self, operation_id: str) -> Answer:
        number = operation_id.removeprefix("op_")
        known = number.isascii() and number.isdigit() and len(number) < 16
        found = self.ledger.operation(int(number)) if known else None
        if found is None or (found.running_left <= 0 and found.outcome == "404"):
            return error_answer(404, "not_found", "no such operation")
        body: Json = {"operation_id": _operation_id(found.n)}
        if found.running_left > 0 or found.outcome == "never":
            self.ledger.count_poll(found.n)
            return json_answer(200, {**body, "status": "running"})
        if found.outcome == "failed":
            return json_answer(200, {**body, "status": "failed", "error": "operation_failed"})
        object_id = found.object_id or self._end_operation(found.n, found.arrival_n)
        effect = self.ledger.object(found.kind, object_id)
        assert effect is not None, "a succeeded operation has made its object"
        resource = {"resource_id": object_id, "resource": self._shown(effect)}
        return json_answer(200, {**body, "status": "succeeded", **resource})

    def _end_operation(self, n: int, arrival_n: int) -> str:
        """Make the effect of an operation that was accepted without one."""
        row = self.ledger.arrival(arrival_n)
        target = f"{row['path']}?{row['query']}" if row["query"] else row["path"]
        headers = tuple(row["headers"].items())
        request = Request(row["method"], target, headers, row["body"])
        route = route_of(request)
        with self.ledger.transaction():
            made = self._add(Arrival(arrival_n, request, route, self.keys(request, route)))
            self.ledger.finish_operation(n, made.object_id)
        return made.object_id

    def _created(self, effect: Effect) -> Answer:
        path = f"/objects/{effect.kind}/{effect.object_id}"
        return json_answer(201, self._shown(effect), ("location", path), ("etag", effect.etag))

    def _shown(self, effect: Effect) -> Json:
        """An object as the API answers it: the caller's fields, then what the target adds."""
        shown: Json = {"status": "succeeded", **effect.content}
        name = f"{effect.kind}/{effect.object_id}"
        if self._undone_by("cancellations", name):
            shown["status"] = "cancelled"
        elif effect.kind == "charges" and self._undone_by("refunds", name):
            shown["status"] = "refunded"
        added = {
            "id": effect.object_id,
            "kind": effect.kind,
            "name": effect.name,
            "idempotency_key": effect.downstream_key,
            "correlation_key": effect.correlation_key,
            "body_digest": self.ledger.body_digest(effect.arrival_n),
            "created_at": int(effect.committed_at),
        }
        return {**shown, **{field: value for field, value in added.items() if value is not None}}


def _request_digest(request: Request) -> str:
    """What de-duplication compares: method, target and the body's bytes."""
    line = f"{request.method} {request.target} {request.body_digest}"
    return hashlib.sha256(line.encode()).hexdigest()


def _operation_id(n: int) -> str:
    return f"op_{n:06d}"
