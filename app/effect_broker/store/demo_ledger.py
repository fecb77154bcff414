"""The ledger that the demo's transactional contract posts to; made by demo and proofs only."""

from __future__ import annotations

from importlib.resources import files

import psycopg

from effect_broker.store.errors import store_errors


def create(superuser_url: str) -> None:
    """Make the ledger's schema, if it is not there.

    Raises:
        StoreError.
    """
    text = files("effect_broker.store").joinpath("demo_ledger.sql").read_bytes()
    with store_errors(), psycopg.connect(superuser_url) as connection:
        connection.execute(text)


def count(superuser_url: str, memo: str) -> int:
    """Return how many entries bear this memo.

    Raises:
        StoreError.
    """
    with store_errors(), psycopg.connect(superuser_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM effect_broker_demo.entries WHERE memo = %s", [memo]
        ).fetchone()
    assert row is not None, "an aggregate returns a row"
    return int(row[0])
