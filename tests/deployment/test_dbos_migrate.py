"""`dbos migrate` in the checkout makes both schemas of the database that the variable names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import psycopg
import pytest

from postgres import Database
from repository.checkout import CHECKOUT

SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.mark.timeout(180)
def test_dbos_migrate_runs_our_migrations_too(empty_database: Database, tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "dbos-config.yaml", tmp_path)
    ours = {k: v for k, v in os.environ.items() if not k.startswith("EFFECT_BROKER_")}
    result = subprocess.run(
        [SCRIPTS / "dbos", "migrate"],
        cwd=tmp_path,
        env=ours
        | {
            "EFFECT_BROKER_MIGRATE_DATABASE_URL": empty_database.superuser_url,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with psycopg.connect(empty_database.superuser_url) as connection:
        made = connection.execute(
            "SELECT to_regclass('dbos.workflow_status'),"
            " to_regclass('effect_broker.effect_intents')"
        ).fetchone()
    assert made is not None
    assert None not in made
    assert [path.name for path in tmp_path.iterdir()] == ["dbos-config.yaml"]
