"""What a proof does to a database of its own, as its superuser: faults, and traps for one effect.

    read-only window    a primary that was demoted: new transactions may not write, old ones are cut
    engine dropped      the schema `dbos` is gone beside live workers
    lost run            the first run of an effect is put where nobody polls
    slow write          the next write of an effect's intent takes longer than any statement may

Nothing here is used by a broker's process. Traps are triggers that exist while they are set.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
import psycopg.errors
from psycopg import sql

from effect_broker.store.errors import store_errors

# Sessions of the broker's processes, whoever they log in as.
_CUT_OFF: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'effect-broker%' AND pid <> pg_backend_pid()
"""
_DROP_TRIES: Final = 20

_LOST_RUN: Final = """
CREATE OR REPLACE FUNCTION public.proof_lost_run() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    NEW.queue_name := 'nobody-polls-this';
    RETURN NEW;
END $$;
"""
_LOST_RUN_TRIGGER: Final = """
CREATE TRIGGER proof_lost_run BEFORE INSERT ON dbos.workflow_status
FOR EACH ROW WHEN (NEW.workflow_uuid = {run}) EXECUTE FUNCTION public.proof_lost_run()
"""
_LOST_RUN_END: Final = "DROP FUNCTION IF EXISTS public.proof_lost_run() CASCADE"

# A sequence counts beyond the transaction that the time limit rolls back.
_SLOW_WRITE: Final = """
CREATE SEQUENCE public.proof_slow_write;
CREATE FUNCTION public.proof_slow_write() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF nextval('public.proof_slow_write') = 1 THEN
        PERFORM pg_sleep(60);
    END IF;
    RETURN NEW;
END $$;
"""
_SLOW_WRITE_TRIGGER: Final = """
CREATE TRIGGER proof_slow_write BEFORE INSERT OR UPDATE ON effect_broker.effect_intents
FOR EACH ROW WHEN (NEW.effect_id = {effect}) EXECUTE FUNCTION public.proof_slow_write()
"""
_SLOW_WRITE_MET: Final = "SELECT is_called FROM public.proof_slow_write"
_SLOW_WRITE_END: Final = """
DROP FUNCTION IF EXISTS public.proof_slow_write() CASCADE;
DROP SEQUENCE IF EXISTS public.proof_slow_write
"""
_EVENTS: Final = """
SELECT array_agg(kind ORDER BY sequence) FROM effect_broker.effect_events WHERE effect_id = %s
"""
_BEATS_SINCE: Final = """
SELECT EXISTS (SELECT 1 FROM effect_broker.workers WHERE pid = %s AND beat_at > %s)
"""


def begin_read_only(superuser_url: str) -> None:
    """Refuse writes from now on, and cut off the broker's sessions.

    Raises:
        StoreError.
    """
    _run(
        superuser_url,
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
        _CUT_OFF,
    )


def end_read_only(superuser_url: str) -> None:
    """Take writes again.

    Raises:
        StoreError.
    """
    _run(
        superuser_url,
        "ALTER SYSTEM RESET default_transaction_read_only",
        "SELECT pg_reload_conf()",
    )


def drop_engine(superuser_url: str) -> None:
    """Drop the engine's schema; `effect-broker migrate` brings it back.

    Raises:
        StoreError: it cannot be dropped.
    """
    with store_errors(), psycopg.connect(superuser_url, autocommit=True) as connection:
        for tries_left in reversed(range(_DROP_TRIES)):
            try:
                connection.execute("DROP SCHEMA dbos CASCADE")
            except psycopg.errors.DeadlockDetected:
                # A poll of the queue was faster: an operator tries again as well.
                if not tries_left:
                    raise
            else:
                return


def lose_first_run(superuser_url: str, effect_id: UUID) -> None:
    """Put the first run of an effect, when it is enqueued, where nobody polls.

    Raises:
        StoreError.
    """
    run = sql.Literal(f"{effect_id}.1")
    _run(superuser_url, _LOST_RUN, sql.SQL(_LOST_RUN_TRIGGER).format(run=run))


def lose_no_run(superuser_url: str) -> None:
    """Undo `lose_first_run`; what was lost stays lost.

    Raises:
        StoreError.
    """
    _run(superuser_url, _LOST_RUN_END)


def slow_next_write(superuser_url: str, effect_id: UUID) -> None:
    """Let the next write of an effect's intent take a minute; only once.

    Raises:
        StoreError.
    """
    effect = sql.Literal(str(effect_id))
    _run(superuser_url, _SLOW_WRITE, sql.SQL(_SLOW_WRITE_TRIGGER).format(effect=effect))


def slow_write_met(superuser_url: str) -> bool:
    """Whether the slow write has been met since `slow_next_write`.

    Raises:
        StoreError.
    """
    return bool(_value(superuser_url, _SLOW_WRITE_MET))


def slow_no_write(superuser_url: str) -> None:
    """Undo `slow_next_write`.

    Raises:
        StoreError.
    """
    _run(superuser_url, _SLOW_WRITE_END)


def database_clock(superuser_url: str) -> Any:
    """Return the database's time, for `beats_since`.

    Raises:
        StoreError.
    """
    return _value(superuser_url, "SELECT clock_timestamp()")


def beats_since(superuser_url: str, pid: int, moment: Any) -> bool:
    """Whether the worker of this process id has beaten since then.

    Raises:
        StoreError.
    """
    return bool(_value(superuser_url, _BEATS_SINCE, pid, moment))


def event_kinds(superuser_url: str, effect_id: UUID) -> tuple[str, ...]:
    """Return the kinds of an effect's events in order.

    Raises:
        StoreError.
    """
    return tuple(_value(superuser_url, _EVENTS, effect_id) or ())


def _run(superuser_url: str, *statements: LiteralString | sql.Composed) -> None:
    with store_errors(), psycopg.connect(superuser_url, autocommit=True) as connection:
        # The superuser goes on writing while nobody else may.
        connection.execute("SET default_transaction_read_only = off")
        for statement in statements:
            connection.execute(statement)


def _value(superuser_url: str, query: LiteralString, *values: object) -> Any:
    with store_errors(), psycopg.connect(superuser_url, autocommit=True) as connection:
        row = connection.execute(query, values or None).fetchone()
    return None if row is None else row[0]
