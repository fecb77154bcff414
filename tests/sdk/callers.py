"""A business with a table of its own in the broker's database, and a role that submits there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import Connection, sql
from psycopg.rows import TupleRow

from effect_broker.proof.broker import ProofBroker
from effect_broker.store.callers import Admission, Callers
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from sdk.posting import TOOL, Poster

T = TypeVar("T")

ORDERS = "CREATE TABLE IF NOT EXISTS public.orders (name text PRIMARY KEY, amount int NOT NULL)"


@dataclass(frozen=True, slots=True)
class Business:
    """What a caller's process holds: its own login, and a ring without a signing key."""

    scene: Scene
    role: str
    ring: str

    @property
    def url(self) -> str:
        return url_as(self.scene.broker, self.role)

    @property
    def alchemy_url(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://", 1)

    def connect(self, **settings: object) -> Connection[TupleRow]:
        return psycopg.connect(self.url, **settings)  # type: ignore[arg-type]

    def orders(self, name: str) -> int:
        """How many orders of this name are committed."""
        found = self.scene.value("SELECT count(*) FROM public.orders WHERE name = %s", name)
        assert isinstance(found, int)
        return found

    def intents(self, operation_key: str) -> int:
        """How many intents of this key are committed."""
        found = self.scene.value(
            "SELECT count(*) FROM effect_broker.effect_intents WHERE operation_key = %s",
            operation_key,
        )
        assert isinstance(found, int)
        return found


def url_as(broker: ProofBroker, role: str) -> str:
    parts = urlsplit(broker.superuser_url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role)}@{address}"))


def administer(broker: ProofBroker, work: Callable[[Pool], Awaitable[T]]) -> T:
    """Do something as the admin role does."""

    async def run() -> T:
        url = broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
            return await work(pool)

    return asyncio.run(run())


def narrow_ring(broker: ProofBroker) -> str:
    """The broker's ring as a caller is given it."""
    ring = json.loads((broker.directory / "keyring.json").read_text("utf-8"))
    del ring["signing"]
    return json.dumps(ring)


def posting_contract() -> ContractDocument:
    """The contract of what a caller carries out by its own statements."""
    content = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
    content |= {"name": "shop-post", "tool": TOOL}
    return ContractDocument.parse_yaml(json.dumps(content))


def poster_of(shop: Business, api_key: str, url: str | None = None) -> Poster:
    """What a process of the business is given; its own transactions may take another way."""
    return Poster(url or shop.url, shop.scene.broker.url(DatabaseRole.API), api_key, shop.ring)


@contextmanager
def business(scene: Scene, tenant: str | None, directory: Path) -> Iterator[Business]:
    """A new role with the table; it is a caller of the tenant, if one is named."""
    role = f"shop-{uuid4().hex[:8]}"
    name = sql.Identifier(role)
    with psycopg.connect(scene.broker.superuser_url, autocommit=True) as superuser:
        superuser.execute(ORDERS)
        superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        superuser.execute(sql.SQL("GRANT SELECT, INSERT ON public.orders TO {}").format(name))
    if tenant is not None:
        added = administer(scene.broker, lambda pool: Callers(pool).add(role, tenant))
        assert added is Admission.ADDED
    ring = directory / f"{role}.json"
    ring.write_text(narrow_ring(scene.broker))
    yield Business(scene, role, str(ring))
    with psycopg.connect(scene.broker.superuser_url, autocommit=True) as superuser:
        superuser.execute(sql.SQL("DROP OWNED BY {}").format(name))
        superuser.execute(sql.SQL("DROP ROLE {}").format(name))
