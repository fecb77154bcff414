"""effect-broker: a correctness boundary for tool calls that change the outside world.

This module owns the package's public names. The version is the one of the installed distribution.
"""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("effect-broker")
