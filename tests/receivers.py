"""A receiver of webhooks and a tracker of tickets, both scripted here.

No open receiver or tracker keeps the promises that `webhook-post` and `ticket-create` need, so
these two are ours and say so: a receiver that de-duplicates by key as the IETF draft on the
Idempotency-Key header has it, and a tracker that knows no key and whose search sees a ticket late.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from peers import Arrival, answer, json_answer


class Receiver:
    """Keeps what came, by `webhook-id`.

    Attributes:
        losing: it keeps what comes and does not answer.
        names_events: it answers with the id of the event that it keeps; else with nothing.
        forgets_keys: every request is another event.
    """

    def __init__(self) -> None:
        self.events: dict[str, bytes] = {}
        self.keys: list[tuple[str, str]] = []
        self.losing = self.names_events = self.forgets_keys = False

    def __call__(self, arrival: Arrival) -> None:
        head, _, body = arrival.read_request().partition(b"\r\n\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
        }
        key = headers["webhook-id"]
        self.keys.append((key, headers["idempotency-key"]))
        place = f"{key}:{len(self.events)}" if self.forgets_keys else key
        if self.events.setdefault(place, body) != body:
            return arrival.send(answer(422))
        if self.losing:
            return arrival.reset()
        if self.names_events:
            event = {"id": f"evt_{list(self.events).index(place) + 1}"}
            return arrival.send(json_answer(200, json.dumps(event)))
        return arrival.send(answer(204))


class Tracker:
    """Keeps tickets; its search sees one `lag_seconds` after it was made.

    Attributes:
        shown: how many tickets each search has found.
        page: how many tickets one answer of the search shows.
        losing: for so many requests more it makes a ticket and does not answer.
    """

    def __init__(self, lag_seconds: float = 0.0) -> None:
        self.lag_seconds = lag_seconds
        self.tickets: list[dict[str, Any]] = []
        self.shown: list[int] = []
        self.page = 50
        self.losing = 0
        self._made_at: list[float] = []
        self._lock = threading.Lock()

    def make(self, ticket: dict[str, Any]) -> dict[str, Any]:
        """Make a ticket, now."""
        with self._lock:
            made = {**ticket, "id": len(self.tickets) + 1}
            self.tickets.append(made)
            self._made_at.append(time.monotonic())
        return made

    def __call__(self, arrival: Arrival) -> None:
        head, _, body = arrival.read_request().partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            return arrival.send(self._search(head.split(b" ")[1].decode()))
        if not head:
            return None
        ticket = self.make(json.loads(body))
        if self.losing:
            self.losing -= 1
            return arrival.reset()
        return arrival.send(json_answer(201, json.dumps(ticket)))

    def _search(self, path: str) -> bytes:
        # As vague as a search is: any ticket with the words before the last dash.
        words = parse_qs(urlsplit(path).query)["key"][0].partition("-")[0]
        with self._lock:
            now = time.monotonic()
            seen = [
                ticket
                for ticket, made_at in zip(self.tickets, self._made_at, strict=True)
                if made_at + self.lag_seconds <= now and words in ticket["body"]
            ]
            self.shown.append(len(seen))
        page = {"tickets": seen[: self.page], "has_more": len(seen) > self.page}
        return json_answer(200, json.dumps(page))
