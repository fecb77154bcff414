"""The one place where psycopg's errors become the store's: no other module names an SQLSTATE.

    lost, refused, read-only, full            StoreUnavailable   nothing was committed
    lock, deadlock, serialization, timeout    StoreBusy          nothing was committed
    the same losses while COMMIT is out       CommitUnknown      it has happened or it has not
    another active contract                   ContractMoved      nothing was committed
    another effect that cannot be named       LinkRefused        nothing was committed
    a run that the engine did not take        StoreUnavailable   nothing was committed
    a guard, a constraint                     StaleWrite         a bug, or a hand in the database
    anything else                             StoreError         a bug; nothing was committed

The texts hold an SQLSTATE and the name of a constraint. What the server says may hold values of a
row, so it goes no further; nor does the cause, whose text a traceback would print.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
import psycopg.errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from effect_broker.hosting import ENGINE_MISSING_SQLSTATES
from effect_broker.protocol.ports import (
    CommitUnknown,
    ContractMoved,
    LinkRefusal,
    LinkRefused,
    StaleWrite,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)

GUARD_SQLSTATE: Final = "EB001"
CONTRACT_MOVED_SQLSTATE: Final = "EB002"
NOT_ENQUEUED_SQLSTATE: Final = "EB003"
# A statement of the hot path undid itself: what it had taken for granted was no longer so.
UNDONE_SQLSTATE: Final = "EB011"
LINK_REFUSED: Final = {
    "EB004": LinkRefusal.MISSING,
    "EB005": LinkRefusal.ANOTHER,
    "EB006": LinkRefusal.NOT_COMPENSABLE,
}

# The broker's own tables are the authority and go on without the engine's.
ENGINE_MISSING: Final = tuple(
    psycopg.errors.lookup(state) for state in sorted(ENGINE_MISSING_SQLSTATES)
)

# By SQLSTATE; a class (two letters) counts where the whole code is not listed.
_LOST: Final = frozenset(
    {
        "08",  # connection exceptions
        "57P01",  # admin_shutdown: even after the commit, while a standby is waited for
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P04",  # database_dropped
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
    }
)
_COMMIT_IN_DOUBT: Final = frozenset({"40003", "08007"})
_REFUSED: Final = frozenset(
    {
        NOT_ENQUEUED_SQLSTATE,
        "25006",  # read_only_sql_transaction: a standby, or a primary that was demoted
        "28",  # no such login, wrong password
        "3D000",  # no such database
        "3F000",  # no such schema: not migrated
        "42P01",  # undefined_table: not migrated
        "42883",  # undefined_function: not migrated
        "42703",  # undefined_column: older schema
        "42501",  # insufficient_privilege: not granted
        "22023",  # the role of the session does not exist: not migrated
        "53",  # out of disk, memory or connections
        "58",  # the operating system's errors
    }
)
_BUSY: Final = frozenset(
    {
        "40",  # rolled back: serialization_failure, deadlock_detected
        "55P03",  # lock_not_available
        "55006",  # object_in_use
        UNDONE_SQLSTATE,
        "57014",  # query_canceled: statement_timeout
    }
)
_REFUSED_WRITE: Final = frozenset({GUARD_SQLSTATE, "23", "27", "44"})


@dataclass(slots=True)
class Progress:
    """How far a transaction has come; `committing` once its COMMIT may have left."""

    committing: bool = False


@contextmanager
def store_errors(progress: Progress | None = None) -> Iterator[Progress]:
    """Turn psycopg's errors inside the block into the store's.

    Raises:
        StoreError: one of its kinds, for any error of psycopg or its pool.
    """
    progress = progress or Progress()
    try:
        yield progress
    except psycopg.Error as error:
        raise store_error(error, committing=progress.committing) from None


def store_error(error: psycopg.Error, *, committing: bool) -> StoreError:
    """Return the store's word for an error of psycopg."""
    if isinstance(error, PoolTimeout | PoolClosed | TooManyRequests):
        return StoreUnavailable("no connection to the database")
    state = error.sqlstate
    if state is None:
        return _client_error(error, committing)
    text = f"SQLSTATE {state}"
    if constraint := error.diag.constraint_name:
        text += f", constraint {constraint}"
    if state == CONTRACT_MOVED_SQLSTATE:
        return ContractMoved(text)
    if state in LINK_REFUSED:
        return LinkRefused(LINK_REFUSED[state])
    if state in _COMMIT_IN_DOUBT:
        return CommitUnknown(text)
    if _listed(state, _LOST):
        return CommitUnknown(text) if committing else StoreUnavailable(text)
    if _listed(state, _REFUSED):
        return StoreUnavailable(text)
    if _listed(state, _BUSY):
        return StoreBusy(text)
    if _listed(state, _REFUSED_WRITE):
        return StaleWrite(text)
    return StoreError(text)


def _client_error(error: psycopg.Error, committing: bool) -> StoreError:
    """An error without an SQLSTATE did not come from the server."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # psycopg says OperationalError for a connection that breaks and for one that is refused.
        if committing:
            return CommitUnknown("the connection was lost during COMMIT")
        return StoreUnavailable("the connection was lost or refused")
    return CommitUnknown(type(error).__name__) if committing else StoreError(type(error).__name__)


def _listed(state: str, listed: frozenset[str]) -> bool:
    return state in listed or state[:2] in listed
