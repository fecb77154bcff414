"""What a caller hands over for a way to Postgres, checked where it was given."""

from __future__ import annotations

import os
from pathlib import Path

from effect_broker.config import ConfigurationProblem, Settings, load_settings
from effect_broker.keyring import KeyRing, KeyRingProblem, key_ring, parse_key_ring
from effect_broker.sdk.errors import NotConfigured

_GIVEN = "the key ring of this client"


def settings_for(url: str | None) -> Settings:
    """Return the settings of this process; a URL goes before the environment's.

    Metrics, spans and the listener for them are the host program's, not ours.

    Raises:
        NotConfigured.
    """
    try:
        settings = load_settings()
    except ConfigurationProblem as problem:
        raise NotConfigured(str(problem)) from None
    quiet = {"metrics": False, "metrics_port": None, "tracing": False}
    if url is None:
        return settings.model_copy(update=quiet)
    if not url.startswith(("postgresql://", "postgres://")):
        raise NotConfigured("The database's URL has to begin with postgresql://.")
    return settings.model_copy(update={**quiet, "api_database_url": url})


def ring_for(settings: Settings, given: str | os.PathLike[str] | None) -> KeyRing:
    """Return a key ring: a file's, a document's, or that of the environment.

    Raises:
        NotConfigured: the text says what to do, never a key.
    """
    try:
        if given is None:
            return key_ring(settings)
        text = given if isinstance(given, str) and given.lstrip().startswith("{") else None
        if text is None:
            text = Path(given).read_text(encoding="utf-8")
        return parse_key_ring(text, source=_GIVEN, production=settings.production)
    except KeyRingProblem as problem:
        raise NotConfigured(f"The key ring cannot be used: {problem}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        kind = type(problem).__name__
        raise NotConfigured(f"The file of the key ring cannot be read ({kind}).") from None
