"""Where a caller finds its broker: the two variables of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from effect_broker.sdk.errors import NotConfigured

ENV_URL: Final = "EFFECT_BROKER_URL"
ENV_API_KEY: Final = "EFFECT_BROKER_API_KEY"


def access_from(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return URL and API key.

    Raises:
        NotConfigured: names the variable that is missing.
    """
    return variable_of(environment, ENV_URL), variable_of(environment, ENV_API_KEY)


def variable_of(environment: Mapping[str, str], name: str) -> str:
    # A line feed at the end is how files and shells hand over a secret, never a part of it.
    value = environment.get(name, "").strip()
    if not value:
        raise NotConfigured(f"The environment variable {name} is not set.")
    return value
