"""The optional packages that some adapters need: what they are, and what is said where one is
absent.

Nothing of them is imported before a contract needs it. A process without the package can still take
requests (rendering needs none); it cannot send them, and says which extra to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

# The extra of the distribution by kind of adapter, and the package that it brings.
EXTRA_BY_KIND: Final[Mapping[str, tuple[str, str]]] = {
    "mcp": ("mcp", "mcp"),
    "nats": ("nats", "nats"),
    "s3": ("aws", "botocore"),
    "smtp": ("smtp", "aiosmtplib"),
    "sqs": ("aws", "botocore"),
}


class ExtraMissing(Exception):
    """A kind of adapter needs a package that is not installed; the text says which extra has it.

    Attributes:
        code: of an attempt that met this, for example `extra_missing_aws`.
    """

    def __init__(self, kind: str, extra: str) -> None:
        super().__init__(
            f"the adapter {kind} needs the extra {extra}: pip install 'effect-broker[{extra}]'"
        )
        self.code = f"extra_missing_{extra}"


def require_extra(kind: str) -> None:
    """Raise `ExtraMissing` if this process lacks the package that the adapter `kind` needs.

    Raises:
        ExtraMissing: see there.
    """
    needed = EXTRA_BY_KIND.get(kind)
    if needed is None:
        return
    extra, package = needed
    if find_spec(package) is None:
        raise ExtraMissing(kind, extra)
