"""The synchronous client: a thin face over `AsyncBroker`, and no second behaviour.

The coroutines run in an event loop of their own, in a thread that begins with the first call. So
any number of threads may call at once, also a thread in which another event loop runs (which is
blocked meanwhile, as by every synchronous call).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import os
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from effect_broker.sdk.client import (
    ANSWER_TIME,
    PATIENCE,
    AsyncBroker,
    EffectRef,
    access_from,
    checked_external_id,
    submit_body,
)
from effect_broker.sdk.errors import Closed
from effect_broker.sdk.joined import KeyRingSource, Transacted, at_once
from effect_broker.sdk.patience import Deadline
from effect_broker.sdk.performed import performed
from effect_broker.sdk.performing import Performance, PerformOutcome
from effect_broker.sdk.results import Effect, Evidence, Outcome, Receipt, Tool
from effect_broker.sdk.unresolved import UnresolvedPage
from effect_contracts.facts import Conclusion

T = TypeVar("T")
P = ParamSpec("P")

# Connections are closed in far less; a loop that does not end must not hold up its caller.
_END_SECONDS: Final = 5.0

_FOR_PLAIN: Final = (
    "`Broker.{}` takes a plain function, and this one is to be awaited: `AsyncBroker` awaits it"
)


class Broker:
    """A broker, for threads. Arguments, methods and errors are those of `AsyncBroker`.

    Use it as a context manager, or for as long as the process lives: it is meant to be shared. A
    forked child gets connections of its own.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        def make() -> AsyncBroker:
            return AsyncBroker(
                base_url, api_key, patience=patience, answer_time=answer_time, tls=tls
            )

        self._open(make)

    def _open(self, make: Callable[[], AsyncBroker]) -> None:
        self._make = make
        # Made here, so that a wrong URL or key is told where it was given.
        self._client = make()
        self._lock = threading.Lock()
        self._closed = False
        self._running: _Running | None = None
        _FACES.add(self)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Return a client as EFFECT_BROKER_URL and EFFECT_BROKER_API_KEY say.

        Raises:
            NotConfigured: names the variable that is missing.
        """
        url, api_key = access_from(os.environ if environment is None else environment)
        return cls(url, api_key, patience=patience, answer_time=answer_time, tls=tls)

    @classmethod
    def on_postgres(
        cls,
        url: str | None = None,
        *,
        api_key: str | None = None,
        key_ring: KeyRingSource = None,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
    ) -> Self:
        """Return a client that needs no API process. See `AsyncBroker.on_postgres`."""
        made = cls.__new__(cls)
        made._open(
            lambda: AsyncBroker.on_postgres(
                url, api_key=api_key, key_ring=key_ring, patience=patience, answer_time=answer_time
            )
        )
        return made

    def __repr__(self) -> str:
        return repr(self._client).replace("AsyncBroker", type(self).__name__, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; effects that are under way go on."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.end()

    def submit(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        operation_key: str,
        trace_id: str | None = None,
        send_before: datetime | None = None,
        parent: EffectRef | None = None,
        compensates: EffectRef | None = None,
        connection: object | None = None,
    ) -> Effect:
        """Make an intent durable; the same call again is always safe. See `AsyncBroker.submit`.

        `operation_key` is the stable name of the business intent: the same at every try, made of
        what you know before (`order:42:charge:v1`), never of a random id or of the arguments.
        """
        if connection is not None:
            body = submit_body(
                tool, arguments, operation_key, trace_id, send_before, parent, compensates
            )
            joins = self._run(lambda broker: broker.joinable())
            # In this thread, which owns the connection.
            return at_once(joins.submit(connection, body, loop=False))
        return self._run(
            lambda broker: broker.submit(
                tool,
                arguments,
                operation_key=operation_key,
                trace_id=trace_id,
                send_before=send_before,
                parent=parent,
                compensates=compensates,
            )
        )

    def transact(
        self,
        connection: object,
        body: Callable[[], T],
        *,
        tool: str,
        arguments: Mapping[str, Any],
        operation_key: str,
        external_id: str | None = None,
        trace_id: str | None = None,
    ) -> Transacted[T]:
        """Carry out an effect by your own statements, once. See `AsyncBroker.transact`.

        Raises:
            TypeError: `body` gave something to await, so that it has done nothing; no receipt
                stands. And as `AsyncBroker.transact`.
        """

        async def carried_out() -> T:
            returned = body()
            if inspect.isawaitable(returned):
                if inspect.iscoroutine(returned):
                    returned.close()
                raise TypeError(f"{_FOR_PLAIN.format('transact')}; nothing was carried out.")
            return returned

        asked = submit_body(tool, arguments, operation_key, trace_id)
        told = checked_external_id(external_id)
        joins = self._run(lambda broker: broker.joinable())
        return at_once(joins.transact(connection, asked, told, carried_out, loop=False))

    def get(self, effect: EffectRef) -> Effect:
        """Return an effect as it stands. See `AsyncBroker.get`."""
        return self._run(lambda broker: broker.get(effect))

    def wait(self, effect: EffectRef, *, deadline: Deadline = None) -> Effect:
        """Return an effect once it is final or waits for a person. See `AsyncBroker.wait`."""
        return self._run(lambda broker: broker.wait(effect, deadline=deadline))

    def result(self, effect: EffectRef, *, deadline: Deadline = None) -> Outcome:
        """Wait, and return what has become of the effect. See `AsyncBroker.result`."""
        return self._run(lambda broker: broker.result(effect, deadline=deadline))

    def receipt(self, effect: EffectRef) -> Receipt:
        """Return the receipt of a settled effect. See `AsyncBroker.receipt`."""
        return self._run(lambda broker: broker.receipt(effect))

    def tool(self, name: str) -> Tool:
        """Return the contract that serves a tool. See `AsyncBroker.tool`."""
        return self._run(lambda broker: broker.tool(name))

    def unresolved(
        self,
        *,
        tool: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> UnresolvedPage:
        """Return effects that want attention. See `AsyncBroker.unresolved`."""
        return self._run(
            lambda broker: broker.unresolved(tool=tool, reason=reason, limit=limit, cursor=cursor)
        )

    def perform(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        operation_key: str,
        trace_id: str | None = None,
    ) -> Performance:
        """Let this caller make the call itself, once: `with` it. See `AsyncBroker.perform`."""
        return Performance(
            self,
            lambda broker: broker.perform(
                tool, arguments, operation_key=operation_key, trace_id=trace_id
            ),
        )

    def performed(
        self,
        tool: str,
        *,
        key: Callable[..., str],
        arguments: Callable[..., Mapping[str, Any]] | None = None,
    ) -> Callable[[Callable[Concatenate[Performance, P], T]], Callable[P, PerformOutcome]]:
        """Return a decorator: the function performs the effect. See `AsyncBroker.performed`.

        Raises:
            TypeError: the function that is decorated is one of coroutines, which would not run.
        """
        decorate = performed(self, tool, key, arguments)

        def decorate_plain(
            function: Callable[Concatenate[Performance, P], T],
        ) -> Callable[P, PerformOutcome]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{_FOR_PLAIN.format('performed')}.")
            return decorate(function)

        return decorate_plain

    def reconcile(self, effect: EffectRef) -> Effect:
        """Ask the broker to look at the target now. See `AsyncBroker.reconcile`."""
        return self._run(lambda broker: broker.reconcile(effect))

    def cancel(self, effect: EffectRef) -> Effect:
        """Withdraw an effect before its first attempt. See `AsyncBroker.cancel`."""
        return self._run(lambda broker: broker.cancel(effect))

    def resolve(
        self,
        effect: EffectRef,
        conclusion: Conclusion | str,
        *,
        decision_id: str,
        expected_version: int,
        reason: str,
        evidence: Sequence[Evidence],
        external_id: str | None = None,
    ) -> Effect:
        """Record what a person knows of an effect. See `AsyncBroker.resolve`."""
        return self._run(
            lambda broker: broker.resolve(
                effect,
                conclusion,
                decision_id=decision_id,
                expected_version=expected_version,
                reason=reason,
                evidence=evidence,
                external_id=external_id,
            )
        )

    def _run(self, call: Callable[[AsyncBroker], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._closed:
                raise Closed("This client is closed.")
            if self._running is None:
                self._running = _Running(self._client)
                weakref.finalize(self, self._running.ask_to_end).atexit = False
            running = self._running
        return running.run(call)

    def _soon(self, work: Callable[[], object]) -> None:
        """Let something be done in the loop, after what is under way there; nobody waits for it."""
        with self._lock:
            running = self._running
        if running is not None:
            running.soon(work)

    def _forget(self) -> None:
        """In a forked child: the thread is not there, and the connections are the parent's."""
        self._lock = threading.Lock()
        self._running = None
        self._client = self._make()


class _Running:
    """An event loop in a thread, with the client that lives in it."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        self._calls: set[asyncio.Task[Any]] = set()
        # It holds the loop and nothing else: a face that nobody holds any more can go.
        self._thread = threading.Thread(
            target=_turn, args=(self._loop,), name="effect-broker", daemon=True
        )
        self._thread.start()

    def run(self, call: Callable[[AsyncBroker], Coroutine[Any, Any, T]]) -> T:
        """Run a call in the loop and return what it returns.

        Raises:
            Closed: in the loop's own thread, where it would wait for itself. No caller is there,
                but the collector is: it ends the generator of somebody's, and the block in it.
        """
        if threading.current_thread() is self._thread:
            raise Closed("A call from the client's own thread would wait for itself.")
        calls = self._calls

        async def counted() -> T:
            task = asyncio.current_task()
            assert task is not None, "the loop runs tasks"
            calls.add(task)
            try:
                return await call(self._broker)
            finally:
                calls.discard(task)

        coroutine = counted()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Closed("This client is closed.") from None
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed(
                "This client was closed during the call; nothing is known of it."
            ) from None
        finally:
            # Whoever is interrupted waits no longer; the effect goes on.
            future.cancel()

    def soon(self, work: Callable[[], object]) -> None:
        """Do something in the loop, while it turns."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def end(self) -> None:
        """Close the connections, and wait until the thread has ended."""
        self.ask_to_end()
        self._thread.join(_END_SECONDS)

    def ask_to_end(self) -> None:
        """Close the connections and end the thread, without waiting for it."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_finish, self._loop, self._broker, self._calls)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _finish(
    loop: asyncio.AbstractEventLoop, broker: AsyncBroker, calls: set[asyncio.Task[Any]]
) -> None:
    """End the calls that are under way, then the connections, then the loop."""

    async def close() -> None:
        # Of the calls alone: what serves them ends by itself, once its connections are closed.
        ending = list(calls)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await broker.close()

    loop.create_task(close()).add_done_callback(lambda _: loop.stop())


_FACES: Final[weakref.WeakSet[Broker]] = weakref.WeakSet()


def _forked() -> None:
    for face in list(_FACES):
        face._forget()


def _at_exit() -> None:
    """End what nobody has closed, before the interpreter takes its loop apart."""
    for face in list(_FACES):
        face.close()


os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
