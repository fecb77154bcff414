"""The settings of every process, from the environment; one name and one meaning each.

EFFECT_BROKER_DATABASE_URL          one URL for everything (development)
EFFECT_BROKER_API_DATABASE_URL      the API's own login
EFFECT_BROKER_WORKER_DATABASE_URL   the worker's own login
EFFECT_BROKER_MIGRATE_DATABASE_URL  the login that may run DDL
EFFECT_BROKER_ENV                   `development` (default) or `production`
EFFECT_BROKER_HOME                  state directory of embedded mode (default .effect-broker)
EFFECT_BROKER_KEY_RING[_FILE]       see effect_broker.keyring
EFFECT_BROKER_SECRET_PREFIX         `env:` references resolve below this prefix only
EFFECT_BROKER_SECRET_DIRECTORY      `file:` references resolve below this directory only
EFFECT_BROKER_DRAIN_SECONDS         how long SIGTERM lets sends run (default 60)
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# The settings of a worker. The TTL trades the time to a take-over against false alarms: three
# missed beats of one second each.
HEARTBEAT_TTL_SECONDS = 3.0
WORKER_CONCURRENCY = 200
QUEUE_POLL_SECONDS = 0.05
# Twice the default attempt deadline. A drain ends as soon as nothing is in flight.
DRAIN_SECONDS = 60.0


class ConfigurationProblem(Exception):
    """A setting is missing or cannot be used; the text names it and says what to do."""


class Environment(StrEnum):
    """Where the process runs."""

    DEVELOPMENT = "development"
    PRODUCTION = "production"


class Role(StrEnum):
    """Whose database login a process uses."""

    API = "api"
    WORKER = "worker"
    MIGRATE = "migrate"


class Settings(BaseSettings):
    """The environment, strictly parsed; unknown variables of ours are not an error, since other
    modules own some of them."""

    model_config = SettingsConfigDict(
        env_prefix="EFFECT_BROKER_", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    database_url: str | None = Field(default=None, repr=False)
    api_database_url: str | None = Field(default=None, repr=False)
    worker_database_url: str | None = Field(default=None, repr=False)
    migrate_database_url: str | None = Field(default=None, repr=False)
    env: Environment = Environment.DEVELOPMENT
    home: Path = Path(".effect-broker")
    secret_prefix: str = "EFFECT_BROKER_SECRET_"
    secret_directory: Path | None = None
    heartbeat_ttl_seconds: float = Field(default=HEARTBEAT_TTL_SECONDS, ge=0.5, le=60.0)
    worker_concurrency: int = Field(default=WORKER_CONCURRENCY, ge=1, le=10_000)
    queue_poll_seconds: float = Field(default=QUEUE_POLL_SECONDS, ge=0.005, le=10.0)
    drain_seconds: float = Field(default=DRAIN_SECONDS, ge=1.0, le=3600.0)
    log_level: str = "INFO"

    @field_validator(
        "database_url", "api_database_url", "worker_database_url", "migrate_database_url"
    )
    @classmethod
    def _postgres(cls, url: str | None) -> str | None:
        if not url:
            return None
        if not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("must begin with postgresql://")
        return url

    @property
    def production(self) -> bool:
        """Whether development conveniences are refused."""
        return self.env is Environment.PRODUCTION

    def url(self, role: Role) -> str | None:
        """Return the URL of a role; None where embedded mode has to give one."""
        own = {
            Role.API: self.api_database_url,
            Role.WORKER: self.worker_database_url,
            Role.MIGRATE: self.migrate_database_url,
        }[role]
        return own or self.database_url


def load_settings() -> Settings:
    """Read the environment.

    Raises:
        ConfigurationProblem: names each variable that cannot be used, never its value.
    """
    try:
        return Settings()
    except ValidationError as problem:
        lines = [
            f"EFFECT_BROKER_{str(e['loc'][0]).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in problem.errors(include_input=False, include_url=False)
        ]
        raise ConfigurationProblem("; ".join(lines)) from None
