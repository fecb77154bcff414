"""How Alembic runs the migrations: on the connection that `effect_broker.store.migrate` gives."""

from __future__ import annotations

from alembic import context

from effect_broker.store.migrate import SCHEMA

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema=SCHEMA,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
