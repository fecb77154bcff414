"""Silence for the libraries that carry MCP: their records quote messages, and so arguments and
credentials. What happens is told by our own values and codes.
"""

from __future__ import annotations

import logging
from typing import Final

_LIBRARIES: Final = ("mcp", "httpx2", "httpcore2", "client")


def silence_libraries() -> None:
    """Let no record of these libraries reach a log; may be called again."""
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
