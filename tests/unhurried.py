"""Sessions of the test process that outlast a machine which stands still for some seconds.

A session of the broker gives up a lock after 1.5 s, ends after 2 s without a word inside a
transaction, and cancels a statement after 2.5 s; those who meet that are told that the broker is
busy and ask again. A test asks once. So where the limits are those of the default, a test process
has them twenty times as long. Processes of a real broker keep theirs, and so does a pool that is
made with a TTL of its own, as the tests of the limits do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from effect_broker.store import pool
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole, session_options

UNHURRIED_TTL_SECONDS = 60.0


@contextmanager
def unhurried_sessions() -> Iterator[None]:
    """Make every pool of this process with long limits, for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "session_options", _options)
        yield


def _options(role: DatabaseRole | None, ttl_seconds: float) -> str:
    is_default = ttl_seconds == HEARTBEAT_TTL_SECONDS
    return session_options(role, UNHURRIED_TTL_SECONDS if is_default else ttl_seconds)
