"""The middleware for any ASGI application, of any framework or of none.

It reads the whole request, claims its key, lets the application answer into a buffer, keeps the
answer, and only then sends it: whoever has read a success can rely on the key. Answers of its own
are problem details (RFC 9457) with a stable `code`; see `effect_broker.receiving.terms.Refusal`.

    code                 status                     code                 status
    key_missing          400                        outcome_unknown      409 (later requests)
    key_invalid          400                        outcome_unknown      500 (the failing one)
    unauthenticated      401                        not_done             500
    key_conflict         422                        response_too_large   500
    in_progress          409, Retry-After           store_unavailable    503, Retry-After
    request_too_large    413

An answer of 2xx or 3xx is kept, and one of 4xx is kept as a refusal. Not kept are 5xx and 408,
which say nothing of what was done, and 425 and 429, which say that nothing was and that the request
may come again. These carry `Idempotency-Outcome: not_done` where it is known that nothing was
changed, else `unknown`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any, Final, TypeAlias, assert_never

from effect_broker.receiving.running import Failed, Ran, Refused, Replayed, run_once
from effect_broker.receiving.telling import told_failure, told_unavailable
from effect_broker.receiving.terms import (
    SENTENCES,
    KeptResult,
    KeyedRequest,
    KeyStore,
    Landed,
    NothingDone,
    Refusal,
    StoreUnavailable,
    key_is_valid,
    request_digest,
)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
ScopeOf: TypeAlias = Callable[[Scope], "str | Awaitable[str | None] | None"]

HEADER: Final = "Idempotency-Key"
LOOK_UP_PATH: Final = "/idempotency-keys"
REQUEST_BYTES_MAX: Final = 1_048_576
# Never cookies, dates or ids of a request: a replay is another exchange, maybe with another client.
KEPT_HEADERS: Final = ("content-type", "content-language", "etag", "last-modified", "location")
REPLAYED: Final = (b"idempotency-replayed", b"true")
OUTCOME: Final = b"idempotency-outcome"
RETRY_AFTER_SECONDS: Final = 1

_STATUS: Final = {
    Refusal.KEY_MISSING: 400,
    Refusal.KEY_INVALID: 400,
    Refusal.UNAUTHENTICATED: 401,
    Refusal.KEY_CONFLICT: 422,
    Refusal.IN_PROGRESS: 409,
    Refusal.OUTCOME_UNKNOWN: 409,
    Refusal.STORE_UNAVAILABLE: 503,
    Refusal.REQUEST_TOO_LARGE: 413,
}
# "Too early", "too many": the application has done nothing, and takes the same request later.
_LATER: Final = frozenset({425, 429})
_COMES_AGAIN: Final = frozenset({Refusal.IN_PROGRESS, Refusal.STORE_UNAVAILABLE})


class _TooLarge(Exception):
    """The application's answer is larger than what may be kept."""


class IdempotentASGI:
    """Wraps an application; requests that it does not cover, and what is no HTTP, pass through.

    Args:
        app: the application.
        store: where keys are kept; its table has to be there.
        scope_of: whose key it is, from the ASGI scope of a request: a tenant, an account. It has to
            authenticate, for requests and look-ups alike; None is answered 401. It may be async.
        header: the header with the key.
        methods: of covered requests.
        paths: path prefixes of covered requests, by whole segments; None for all.
        required: a covered request without a key is refused; else it passes through.
        look_up_path: `GET {look_up_path}/{key}` answers whether a key landed; None for no look-up.
        request_bytes_max: of a covered request's body. An answer's body is bounded by the store.
        kept_headers: names of the answer's headers that are kept and replayed.
    """

    def __init__(
        self,
        app: App,
        store: KeyStore,
        *,
        scope_of: ScopeOf,
        header: str = HEADER,
        methods: Iterable[str] = ("POST",),
        paths: Collection[str] | None = None,
        required: bool = True,
        look_up_path: str | None = LOOK_UP_PATH,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        kept_headers: Iterable[str] = KEPT_HEADERS,
    ) -> None:
        self._app = app
        self._store = store
        self._scope_of = scope_of
        self._header = header.lower().encode("ascii")
        self._named = f"the header {header}"
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = None if paths is None else tuple(path.rstrip("/") for path in paths)
        self._required = required
        self._look_up_path = None if look_up_path is None else look_up_path.rstrip("/") + "/"
        self._request_bytes_max = request_bytes_max
        self._kept_headers = frozenset(name.lower().encode("ascii") for name in kept_headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see ASGI 3."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._is_look_up(scope):
            await self._look_up(scope, send)
        elif self._is_covered(scope):
            await self._keyed(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_look_up(self, scope: Scope) -> bool:
        prefix = self._look_up_path
        return prefix is not None and scope["method"] == "GET" and scope["path"].startswith(prefix)

    def _is_covered(self, scope: Scope) -> bool:
        if scope["method"] not in self._methods:
            return False
        if self._paths is not None:
            path: str = scope["path"]
            if not any(path == known or path.startswith(known + "/") for known in self._paths):
                return False
        return self._required or bool(self._keys(scope))

    def _keys(self, scope: Scope) -> list[bytes]:
        return [value for name, value in scope["headers"] if name.lower() == self._header]

    async def _owner(self, scope: Scope) -> str | None:
        owner = self._scope_of(scope)
        return await owner if inspect.isawaitable(owner) else owner

    # A request under a key ----------------------------------------------------------------------

    async def _keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = await self._owner(scope)
        if owner is None:
            return await _refuse(send, Refusal.UNAUTHENTICATED)
        keys = self._keys(scope)
        if not keys:
            return await _refuse(send, Refusal.KEY_MISSING, f"It goes into {self._named}.")
        key = keys[0].decode("latin-1")
        if len(keys) > 1 or not key_is_valid(key):
            return await _refuse(send, Refusal.KEY_INVALID)
        body = await self._body(receive)
        if body is None:
            return None  # the client has gone before the request was whole
        if len(body) > self._request_bytes_max:
            return await _refuse(send, Refusal.REQUEST_TOO_LARGE)
        request = KeyedRequest(owner, key, request_digest(_asked(scope), body))
        answer = _Answer(self._store.result_bytes_max)

        async def work() -> KeptResult | None:
            await self._app(scope, _whole(body), answer.send)
            if answer.whole and answer.status in _LATER:
                raise NothingDone
            return answer.result(self._kept_headers)

        ended = await run_once(self._store, request, work)
        match ended:
            case Refused(reason):
                await _refuse(send, reason)
            case Replayed(result):
                await _send(send, result.status, _raw(result.headers, REPLAYED), result.body)
            case Ran(result):
                await _send(send, result.status, answer.headers, result.body)
            case Failed():
                await _failed(send, ended, answer)
            case never:
                assert_never(never)
        return None

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body, one byte more than permitted where it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._request_bytes_max or not message.get("more_body", False):
                return bytes(body[: self._request_bytes_max + 1])

    # A look-up ----------------------------------------------------------------------------------

    async def _look_up(self, scope: Scope, send: Send) -> None:
        owner = await self._owner(scope)
        if owner is None:
            return await _refuse(send, Refusal.UNAUTHENTICATED)
        assert self._look_up_path is not None, "the path has matched it"
        key = scope["path"][len(self._look_up_path) :]
        if not key_is_valid(key):
            return await _refuse(send, Refusal.KEY_INVALID)
        try:
            standing = await self._store.look_up(owner, key)
        except StoreUnavailable as error:
            told_unavailable(error)
            return await _refuse(send, Refusal.STORE_UNAVAILABLE)
        status = 404 if standing.state is Landed.NOT_LANDED else 200
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        return await _send(send, status, headers, _json(standing.as_json(key)))


def _asked(scope: Scope) -> dict[str, str]:
    """What a body is for. A text that has no canonical form (NUL) is named by its bytes."""
    asked: dict[str, str] = {"method": scope["method"]}
    texts = {"path": scope["path"], "query": scope["query_string"].decode("latin-1")}
    for name, text in texts.items():
        raw = text.encode("utf-8", "surrogatepass")
        if b"\0" in raw or raw != text.encode("utf-8", "replace"):
            asked[f"{name}_bytes"] = raw.hex()
        else:
            asked[name] = text
    return asked


class _Answer:
    """Takes the application's answer in, up to a bound."""

    def __init__(self, bytes_max: int) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.whole = False
        self.too_large = False
        self._bytes_max = bytes_max

    async def send(self, message: Message) -> None:
        """The `send` of the application.

        Raises:
            _TooLarge: and again at each later message.
        """
        match message["type"]:
            case "http.response.start":
                self.status = int(message["status"])
                found = message.get("headers", [])
                self.headers = [(bytes(n), bytes(v)) for n, v in found]
            case "http.response.body":
                self.body += message.get("body", b"")
                if self.too_large or len(self.body) > self._bytes_max:
                    self.too_large = True
                    self.body.clear()
                    raise _TooLarge
                self.whole = not message.get("more_body", False)
            case _:
                pass  # early hints, pushes and the like: nothing that could be kept

    @property
    def is_failure(self) -> bool:
        """Whether the status is none of a result."""
        return self.status >= 500 or self.status == 408 or self.status in _LATER

    def result(self, kept: frozenset[bytes]) -> KeptResult | None:
        """Return what is kept; None where the answer is none that may be."""
        if not self.whole or self.too_large or self.is_failure:
            return None
        headers = tuple(
            (name.lower().decode("latin-1"), value.decode("latin-1"))
            for name, value in self.headers
            if name.lower() in kept
        )
        return KeptResult(self.status, headers, bytes(self.body), 400 <= self.status <= 499)


def _whole(body: bytes) -> Receive:
    """Return a `receive` with this body that never tells of a client that has gone: work under a
    key is not abandoned because nobody waits for its answer."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if pending:
            return pending.pop()
        return await _forever()

    return receive


async def _forever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")


async def _failed(send: Send, failed: Failed, answer: _Answer) -> None:
    _tell(failed, answer)
    outcome = b"not_done" if failed.not_done else b"unknown"
    if answer.whole and answer.is_failure:
        await _send(send, answer.status, [*answer.headers, (OUTCOME, outcome)], bytes(answer.body))
    else:
        code = "not_done" if failed.not_done else Refusal.OUTCOME_UNKNOWN.value
        detail = "The request has failed, and nothing was changed."
        if not failed.not_done:
            detail = "The request has failed, and nobody knows how far it was carried out."
        if answer.too_large:
            code = "response_too_large"
            detail = "The answer is larger than what is kept under a key. " + detail
        await _problem(send, 500, code, detail, [(OUTCOME, outcome)])
    if failed.error is not None and not _said_so(failed) and not answer.too_large:
        # For the server's own log; the answer is sent already.
        raise failed.error


def _said_so(failed: Failed) -> bool:
    """Whether the application itself has said that nothing was done."""
    return isinstance(failed.error, NothingDone) and failed.error.__cause__ is None


def _tell(failed: Failed, answer: _Answer) -> None:
    """Log what came to no result, but for an answer that the application has given as it is."""
    later = answer.whole and answer.status in _LATER
    if answer.whole and (failed.error is None or (later and _said_so(failed))):
        return
    what = "work under an idempotency key has failed"
    if answer.too_large:
        what = "an answer is larger than what is kept under an idempotency key"
    elif failed.error is None:
        what = "the application has ended without a whole answer"
    elif _said_so(failed):
        what = "work under an idempotency key has said that nothing was done"
    told_failure(failed.error, not_done=failed.not_done, what=what)


async def _refuse(send: Send, reason: Refusal, place: str = "") -> None:
    more = []
    if reason in _COMES_AGAIN:
        more = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
    detail = f"{SENTENCES[reason]} {place}".rstrip()
    await _problem(send, _STATUS[reason], reason.value, detail, more)


async def _problem(
    send: Send, status: int, code: str, detail: str, more: list[tuple[bytes, bytes]]
) -> None:
    body = _json(
        {"title": code.replace("_", " "), "status": status, "code": code, "detail": detail}
    )
    await _send(send, status, [(b"content-type", b"application/problem+json"), *more], body)


def _raw(
    headers: tuple[tuple[str, str], ...], *more: tuple[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    return [*((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers), *more]


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    told = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    if status not in (204, 304):
        told.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
