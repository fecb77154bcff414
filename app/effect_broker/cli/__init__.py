"""The command line: `effect-broker`. One module per group of commands."""

from __future__ import annotations

from effect_broker.cli.main import main

__all__ = ["main"]
