"""The command line on the field cases' broker, in this process."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cli.commands import Cli, Ended
from effect_broker.store.roles import DatabaseRole
from field_cases.cases import Case

_ORDER = ("ok", "warn", "fail")


class Operator:
    """Who asks about a deployment; `urls` of the processes may lead over a detour."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._cli = Cli(monkeypatch, capsys)

    def __call__(self, *words: str, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a command."""
        with self._monkeypatch.context() as patched:
            for name, value in (environment or {}).items():
                patched.setenv(name, value)
            return self._cli(*words)

    def doctor(self, case: Case, urls: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the worst level of each check of `doctor`."""
        broker = case.broker
        environment = {
            "EFFECT_BROKER_MIGRATE_DATABASE_URL": broker.superuser_url,
            "EFFECT_BROKER_KEY_RING_FILE": str(broker.directory / "keyring.json"),
            "EFFECT_BROKER_API_DATABASE_URL": broker.url(DatabaseRole.API),
            "EFFECT_BROKER_WORKER_DATABASE_URL": broker.url(DatabaseRole.WORKER),
            **(urls or {}),
        }
        worst: dict[str, str] = {}
        for finding in self("doctor", "--json", environment=environment).json["findings"]:
            known = worst.get(finding["check"], "ok")
            worst[finding["check"]] = max(known, finding["level"], key=_ORDER.index)
        return worst
