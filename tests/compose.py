"""The Compose file as this program would run it: each service's command and environment.

Owns the reading of `docker-compose.yml`, with `${NAME}`, `${NAME:-default}` and `${NAME:?message}`
filled in. It promises that a test which starts a service as a plain process runs the very words
that the file holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

COMPOSE_FILE: Final = Path(__file__).resolve().parents[1] / "docker-compose.yml"
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<escaped>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})"
)


class VariableMissing(KeyError):
    """The file demands a variable that was not given; carries the file's own message."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one service runs. `command` is empty where the image's own command is used."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    replicas: int
    waits_for: Mapping[str, str]
    secrets: tuple[str, ...]


def services(variables: Mapping[str, str]) -> dict[str, Service]:
    """The services of the file by name. Raises `VariableMissing` for a `${NAME:?…}` not given."""
    return {name: _service(name, told) for name, told in document(variables)["services"].items()}


def document(variables: Mapping[str, str]) -> Any:
    """The whole file, with variables filled in and merge keys resolved."""
    return _filled(yaml.safe_load(COMPOSE_FILE.read_text("utf-8")), variables)


def _service(name: str, told: Mapping[str, Any]) -> Service:
    return Service(
        name=name,
        image=told["image"],
        command=tuple(told.get("command", ())),
        environment={key: str(value) for key, value in told.get("environment", {}).items()},
        replicas=told.get("deploy", {}).get("replicas", 1),
        waits_for={on: how["condition"] for on, how in told.get("depends_on", {}).items()},
        secrets=tuple(told.get("secrets", ())),
    )


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _replacement(match, variables), value)
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, variables) for key, item in value.items()}
    return value


def _replacement(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["escaped"]:
        return "$"
    given = variables.get(match["name"], "")
    if given or match["kind"] is None:
        return given
    if match["kind"] == "?":
        raise VariableMissing(f"{match['name']}: {match['rest']}")
    return match["rest"]
