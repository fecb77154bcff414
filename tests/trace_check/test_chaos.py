"""A chaos run ends with the trace check: a log that does not verify makes the run unclean."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from uuid import UUID

import psycopg

from effect_broker.store.roles import DatabaseRole
from effect_chaos.supervisor import Result, trace_problems
from effect_chaos.tools import TOOLS
from postgres import Database
from trace_check.test_export import tenant_id

__all__ = ["tenant_id"]


def result(problems: list[str]) -> Result:
    """A run in which nothing else was found."""
    states: dict[str, Counter[str]] = {tool.name: Counter() for tool in TOOLS}
    none: Counter[str] = Counter()
    return Result((), tuple(problems), none, states, none, none, none, none)


async def test_a_run_whose_log_does_not_verify_is_not_clean(
    database: Database, tenant_id: UUID, tmp_path: Path
) -> None:
    """The commands are the real ones; what differs is one event of one effect."""
    environment = os.environ | {
        "EFFECT_BROKER_WORKER_DATABASE_URL": database.url_for(DatabaseRole.WORKER)
    }
    assert trace_problems(tmp_path, environment) == []
    with psycopg.connect(database.superuser_url) as connection:
        connection.execute("ALTER TABLE effect_broker.effect_events DISABLE TRIGGER USER")
        changed = connection.execute(
            "UPDATE effect_broker.effect_events SET actor = 'caller:another'"
            " WHERE ctid = (SELECT min(ctid) FROM effect_broker.effect_events)"
        )
        assert changed.rowcount == 1
    (problem,) = trace_problems(tmp_path, environment)
    assert "events verify" in problem
    assert result([]).clean
    assert not result([problem]).clean
