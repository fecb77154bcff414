"""Make a server idempotent: keep the first result under its key, refuse drift, answer look-ups.

For owners of a server that effect-broker, or anybody who retries, calls: with it the server is in
the class `idempotent` and can be asked. It needs nothing else of the broker, and importing it loads
no framework, no database and no SDK; each name is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from effect_broker.receiving.asgi import IdempotentASGI
    from effect_broker.receiving.mcp_tools import (
        LOOK_UP_TOOL,
        idempotent,
        idempotent_calls,
        register_look_up,
    )
    from effect_broker.receiving.postgres_keys import POSTGRES_DDL, PostgresKeys, connecting
    from effect_broker.receiving.running import current_claim, run_once
    from effect_broker.receiving.sqlite_keys import SQLITE_DDL, SqliteKeys
    from effect_broker.receiving.terms import (
        KeptResult,
        KeyedRequest,
        KeyStore,
        Landed,
        NothingDone,
        NotStored,
        Refusal,
        StoreUnavailable,
        request_digest,
    )

_PLACES: Final = {
    "asgi": ("IdempotentASGI",),
    "mcp_tools": ("LOOK_UP_TOOL", "idempotent", "idempotent_calls", "register_look_up"),
    "postgres_keys": ("POSTGRES_DDL", "PostgresKeys", "connecting"),
    "running": ("current_claim", "run_once"),
    "sqlite_keys": ("SQLITE_DDL", "SqliteKeys"),
    "terms": (
        "KeptResult",
        "KeyStore",
        "KeyedRequest",
        "Landed",
        "NotStored",
        "NothingDone",
        "Refusal",
        "StoreUnavailable",
        "request_digest",
    ),
}

__all__ = [
    "LOOK_UP_TOOL",
    "POSTGRES_DDL",
    "SQLITE_DDL",
    "IdempotentASGI",
    "KeptResult",
    "KeyStore",
    "KeyedRequest",
    "Landed",
    "NotStored",
    "NothingDone",
    "PostgresKeys",
    "Refusal",
    "SqliteKeys",
    "StoreUnavailable",
    "connecting",
    "current_claim",
    "idempotent",
    "idempotent_calls",
    "register_look_up",
    "request_digest",
    "run_once",
]

# Hidden from type checkers: they would take it for the answer to every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for place, names in _PLACES.items():
            if name in names:
                found = getattr(import_module(f"{__name__}.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
