"""Functions that perform an effect: they run for who is elected, and calls return the outcome.

What is promised stands with `effect_broker.sdk.performing`, whose block this is.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from effect_broker.sdk.performing import AsyncPerformance, Performance, PerformOutcome

if TYPE_CHECKING:
    from effect_broker.sdk.client import AsyncBroker
    from effect_broker.sdk.face import Broker

T = TypeVar("T")
P = ParamSpec("P")


def performed_async(
    broker: AsyncBroker,
    tool: str,
    key: Callable[..., str],
    arguments: Callable[..., Mapping[str, Any]] | None,
) -> Callable[
    [Callable[Concatenate[AsyncPerformance, P], Awaitable[T]]],
    Callable[P, Awaitable[PerformOutcome]],
]:
    """Return the decorator of `AsyncBroker.performed`."""

    def decorate(
        function: Callable[Concatenate[AsyncPerformance, P], Awaitable[T]],
    ) -> Callable[P, Awaitable[PerformOutcome]]:
        told = _told_by(function, arguments)

        @wraps(function)
        async def perform(*args: P.args, **kwargs: P.kwargs) -> PerformOutcome:
            operation_key = key(*args, **kwargs)
            async with broker.perform(
                tool, told(*args, **kwargs), operation_key=operation_key
            ) as effect:
                if effect.elected:
                    returned = await function(effect, *args, **kwargs)
                    if effect.outcome is None:
                        await effect.confirm(returned)
            assert effect.outcome is not None, "the block has an outcome, or has raised"
            return effect.outcome

        return perform

    return decorate


def performed(
    broker: Broker,
    tool: str,
    key: Callable[..., str],
    arguments: Callable[..., Mapping[str, Any]] | None,
) -> Callable[[Callable[Concatenate[Performance, P], T]], Callable[P, PerformOutcome]]:
    """Return the decorator of `Broker.performed`."""

    def decorate(
        function: Callable[Concatenate[Performance, P], T],
    ) -> Callable[P, PerformOutcome]:
        told = _told_by(function, arguments)

        @wraps(function)
        def perform(*args: P.args, **kwargs: P.kwargs) -> PerformOutcome:
            operation_key = key(*args, **kwargs)
            with broker.perform(tool, told(*args, **kwargs), operation_key=operation_key) as effect:
                if effect.elected:
                    returned = function(effect, *args, **kwargs)
                    if effect.outcome is None:
                        effect.confirm(returned)
            assert effect.outcome is not None, "the block has an outcome, or has raised"
            return effect.outcome

        return perform

    return decorate


def _told_by(
    function: Callable[..., Any], arguments: Callable[..., Mapping[str, Any]] | None
) -> Callable[..., Mapping[str, Any]]:
    """How a call's arguments become the effect's: by name, the first one (the effect) left out."""
    if arguments is not None:
        return arguments
    signature = inspect.signature(function)
    named = list(signature.parameters.values())[1:]
    bare = signature.replace(parameters=named)

    def by_name(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        bound = bare.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    return by_name
