"""Secret references of contracts (`env:NAME`, `file:/PATH`), resolved where they are used only.

A contract is a document that many may write; without an allow-list it could post the broker's own
keys to a URL. So `env:` resolves only names below one prefix, and `file:` only files inside one
directory, links followed first.
"""

from __future__ import annotations

import os
from pathlib import Path

from effect_adapters.base import SecretUnavailable

# A credential for a header; more is a mistake (or a device file).
_SECRET_BYTES_MAX = 64 * 1024


class SecretReferences:
    """Resolves references below an allow-listed prefix and directory.

    Args:
        prefix: `env:` names must begin with it; an empty prefix allows none.
        directory: `file:` paths are relative to it and stay in it; None allows none.
    """

    def __init__(self, prefix: str, directory: Path | None) -> None:
        self._prefix = prefix
        self._directory = directory.resolve() if directory else None

    def __call__(self, reference: str) -> str:
        """Return the secret of one reference.

        Raises:
            SecretUnavailable: not allowed, not there, or not text. The text names the
                reference and what stands in the way, and never a value.
        """
        kind, _, name = reference.partition(":")
        match kind:
            case "env":
                value, obstacle = self._from_environment(name)
            case "file":
                value, obstacle = self._from_file(name)
            case _:
                value, obstacle = None, "it begins with neither env: nor file:"
        if not value:
            raise SecretUnavailable(
                f"the secret reference {reference!r} cannot be resolved: {obstacle}"
            )
        return value

    def _from_environment(self, name: str) -> tuple[str | None, str]:
        """Return the value, and what stands in the way where there is none."""
        if not self._prefix:
            return None, "this process takes no secrets from its environment"
        if not name.startswith(self._prefix):
            return None, f"its name has to begin with {self._prefix}"
        return os.environ.get(name), "the variable is not set for this process, or empty"

    def _from_file(self, name: str) -> tuple[str | None, str]:
        if self._directory is None:
            return None, "this process has no directory of secrets"
        obstacle = "it is no text file that this process can read below its directory of secrets"
        try:
            path = (self._directory / name).resolve(strict=True)
            if not path.is_relative_to(self._directory) or not path.is_file():
                return None, obstacle
            with path.open("rb") as file:
                content = file.read(_SECRET_BYTES_MAX + 1)
            if len(content) > _SECRET_BYTES_MAX:
                return None, f"the file is larger than {_SECRET_BYTES_MAX} bytes"
            return content.decode().rstrip("\r\n"), "the file is empty"
        except (OSError, ValueError):
            return None, obstacle
