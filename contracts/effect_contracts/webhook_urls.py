"""Which URLs events may be posted to, and which addresses may be reached for it.

Pure. A URL names a host, and a host may name anything inside the network that a worker stands in.
So what a name stands for is judged where it is connected to (`effect_adapters.event_webhook`); here
is the rule: public addresses, and those of the networks that the operator has named.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import urlsplit

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

URL_CHARS_MAX: Final = 2048
_PRINTABLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Inside by their meaning, and global by the library's list: site-local addresses, which networks
# still route (RFC 3879), and segment identifiers of a provider's own (RFC 9602).
_INSIDE: Final = (ipaddress.ip_network("fec0::/10"), ipaddress.ip_network("5f00::/16"))
_PORTS: Final = {"http": 80, "https": 443}


class UrlRefused(ValueError):
    """Nothing is posted to this URL, whoever asks for it; the text says why and not what it is."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where events are posted to."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)


def read_networks(text: str) -> Networks:
    """Read networks in CIDR form, separated by commas.

    Raises:
        ValueError: one of them is none.
    """
    return tuple(
        ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()
    )


def may_be_reached(address: str, networks: Networks) -> bool:
    """Return whether an address is a public one, or in one of these networks."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            known = known.ipv4_mapped
        elif known.sixtofour is not None:
            known = known.sixtofour
        elif known in _NAT64:  # a translator turns it into the IPv4 address at its end
            known = ipaddress.IPv4Address(int(known) & 0xFFFF_FFFF)
    # No address is in a network of the other version.
    if any(known in network for network in networks):
        return True
    if any(known in network for network in _INSIDE):
        return False
    return known.is_global and not known.is_multicast and not known.is_reserved


def receiver_of(url: str, networks: Networks, *, plain_http: bool) -> Receiver:
    """Read the URL of a subscription.

    Raises:
        UrlRefused: it is no URL to post to, or names an address that may not be reached.
    """
    if len(url) > URL_CHARS_MAX or not _PRINTABLE.fullmatch(url):
        raise UrlRefused("a URL has printable ASCII characters only")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UrlRefused("it cannot be read as a URL") from None
    if parts.scheme not in ({"https", "http"} if plain_http else {"https"}):
        raise UrlRefused("the scheme is https")
    if parts.username is not None or parts.password is not None or parts.fragment or "#" in url:
        raise UrlRefused("a URL has no user, no password and no fragment here")
    host, literal = parts.hostname or "", parts.netloc.startswith("[")
    if port == 0 or not (literal or _HOST.fullmatch(host)):
        raise UrlRefused("it names no host")
    # The judgement that counts is made at the connection; this one spares a person the wait.
    is_address = literal or re.fullmatch(r"[0-9.]+", host)
    if is_address and not may_be_reached(host, networks):
        raise UrlRefused("it names an address that may not be reached")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Receiver(parts.scheme, host, port or _PORTS[parts.scheme], target)
