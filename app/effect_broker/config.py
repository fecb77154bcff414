"""The settings of every process, from the environment; one name and one meaning each.

EFFECT_BROKER_DATABASE_URL          one URL for everything (development)
EFFECT_BROKER_API_DATABASE_URL      the API's own login
EFFECT_BROKER_WORKER_DATABASE_URL   the worker's own login
EFFECT_BROKER_MIGRATE_DATABASE_URL  the login that may run DDL
EFFECT_BROKER_ENV                   `development` (default) or `production`
EFFECT_BROKER_HOME                  state directory of embedded mode (default .effect-broker)
EFFECT_BROKER_KEY_RING[_FILE]       see effect_broker.keyring
EFFECT_BROKER_LOST_KEY_IDS          encryption keys that are lost for good, separated by commas
EFFECT_BROKER_SECRET_PREFIX         `env:` references resolve below this prefix only
EFFECT_BROKER_SECRET_DIRECTORY      `file:` references resolve below this directory only
EFFECT_BROKER_WEBHOOK_SECRET_PREFIX     the same for the secrets of webhooks, which the API
EFFECT_BROKER_WEBHOOK_SECRET_DIRECTORY  resolves (and no others); workers do not
EFFECT_BROKER_EVENT_NETWORKS        networks, as CIDR separated by commas, that subscriptions may
                                    reach although they are not public (default: none; under
                                    `effect-broker up` this machine itself)
EFFECT_BROKER_CONSOLE_ORIGIN        what browsers call this site, behind a proxy (https://…)
EFFECT_BROKER_PROBES                registered probes of workers, as module:registry
EFFECT_BROKER_WORKER_CONCURRENCY    runs that a worker holds at once (default 400)
EFFECT_BROKER_TENANT_CONCURRENCY    of these, one tenant's (default: a quarter, at least 1)
EFFECT_BROKER_QUEUE_POLL_SECONDS    how often the queue is asked (default 0.1)
EFFECT_BROKER_HEARTBEAT_TTL_SECONDS after this without a beat a worker is dead to its peers
                                    (default 3); the same for all processes
EFFECT_BROKER_DRAIN_SECONDS         how long SIGTERM lets sends run (default 60)
EFFECT_BROKER_TENANT_REQUESTS_PER_SECOND  of one tenant to one API process (default: no limit)
EFFECT_BROKER_TENANT_REQUESTS_BURST       of these, at once (default: twice that number)
EFFECT_BROKER_METRICS               whether the API serves /metrics on its own port (default true)
EFFECT_BROKER_METRICS_PORT          /metrics on a port of its own, in every process (default: none)
EFFECT_BROKER_METRICS_HOST          the address of that port (default 127.0.0.1)
EFFECT_BROKER_LOG_LEVEL             DEBUG, INFO (default), WARNING, ERROR or CRITICAL
EFFECT_BROKER_LOG_FORMAT            `text` or `json` (default: json in production)
EFFECT_BROKER_TRACING               spans to the collector that OTEL_* name (default false)

docs/configuration.md has them for operators, with those that other modules own.
"""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# The settings of a worker. The TTL trades the time to a take-over against false alarms: three
# missed beats of one second each.
HEARTBEAT_TTL_SECONDS = 3.0
# Held runs mostly wait for targets; one costs some 60 kB. See also effect_broker.hosting.
WORKER_CONCURRENCY = 400
# Half of it is added to every effect's time; docs/performance.md has the measurements.
QUEUE_POLL_SECONDS = 0.1
# Twice the default attempt deadline. A drain ends as soon as nothing is in flight.
DRAIN_SECONDS = 60.0

# Database sessions of one process at most. A submit or a step holds one for a round trip or two, so
# that few of them carry more than one process can compute; see docs/performance.md. The engine's
# pool is beside ours, and it holds two more: one that listens, and one for the queue's settings.
API_POOL_SIZE = 16
WORKER_POOL_SIZE = 8
REPAIR_POOL_SIZE = 4
ENGINE_POOL_SIZE = 6
ENGINE_SESSIONS_BESIDE = 2
WORKER_SESSIONS = WORKER_POOL_SIZE + REPAIR_POOL_SIZE + ENGINE_POOL_SIZE + ENGINE_SESSIONS_BESIDE


# This machine, for a broker that somebody tries on it.
LOOPBACK_NETWORKS = "127.0.0.0/8,::1/128"


class ConfigurationProblem(Exception):
    """A setting is missing or cannot be used; the text names it and says what to do."""


class Environment(StrEnum):
    """Where the process runs."""

    DEVELOPMENT = "development"
    PRODUCTION = "production"


class LogFormat(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


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
    webhook_secret_prefix: str = "EFFECT_BROKER_WEBHOOK_KEY_"
    webhook_secret_directory: Path | None = None
    event_networks: str = ""
    console_origin: str | None = None
    probes: str | None = None
    heartbeat_ttl_seconds: float = Field(default=HEARTBEAT_TTL_SECONDS, ge=0.5, le=60.0)
    worker_concurrency: int = Field(default=WORKER_CONCURRENCY, ge=1, le=10_000)
    tenant_concurrency: int | None = Field(default=None, ge=1, le=10_000)
    tenant_requests_per_second: float | None = Field(
        default=None, ge=0.1, le=1e6, allow_inf_nan=False
    )
    tenant_requests_burst: int | None = Field(default=None, ge=1, le=10_000_000)
    queue_poll_seconds: float = Field(default=QUEUE_POLL_SECONDS, ge=0.005, le=10.0)
    drain_seconds: float = Field(default=DRAIN_SECONDS, ge=1.0, le=3600.0)
    lost_key_ids: str = ""
    log_level: str = "INFO"
    log_format: LogFormat | None = None
    metrics: bool = True
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    tracing: bool = False

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

    @field_validator("console_origin")
    @classmethod
    def _origin(cls, origin: str | None) -> str | None:
        if not origin:
            return None
        # As browsers write it: lower case, no path, an IPv6 address in brackets.
        if not re.fullmatch(r"https?://([a-z0-9.\-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?", origin):
            raise ValueError("must be like https://broker.example, without a path")
        return origin

    @field_validator("event_networks")
    @classmethod
    def _networks(cls, text: str) -> str:
        for part in filter(None, (part.strip() for part in text.split(","))):
            try:
                ip_network(part, strict=False)
            except ValueError:
                raise ValueError("must be networks like 10.0.0.0/8, separated by commas") from None
        return text

    @property
    def production(self) -> bool:
        """Whether development conveniences are refused."""
        return self.env is Environment.PRODUCTION

    @property
    def json_logs(self) -> bool:
        """Whether a line of the log is a JSON object."""
        if self.log_format is None:
            return self.production
        return self.log_format is LogFormat.JSON

    @property
    def given_up_key_ids(self) -> frozenset[str]:
        """Encryption keys without which workers start although open effects name them."""
        return frozenset(name.strip() for name in self.lost_key_ids.split(",") if name.strip())

    def with_loopback(self) -> Self:
        """Return settings whose subscriptions may also reach receivers on this machine."""
        networks = ",".join(filter(None, (self.event_networks, LOOPBACK_NETWORKS)))
        return self.model_copy(update={"event_networks": networks})

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
