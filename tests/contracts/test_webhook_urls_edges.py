"""Addresses and URLs at their edges: what is inside another address, and how long each may be."""

from __future__ import annotations

import pytest

from effect_contracts.webhook_urls import (
    URL_CHARS_MAX,
    UrlRefused,
    may_be_reached,
    read_networks,
    receiver_of,
)


@pytest.mark.parametrize("last", ["0", "1", "fe", "ff"])
def test_an_address_that_is_translated_is_judged_by_what_it_becomes(last: str) -> None:
    """NAT64 (RFC 6052), 6to4 (RFC 3056) and IPv4-mapped addresses hold another one."""
    inside = f"10.20.255.{int(last, 16)}"
    networks = read_networks(f"{inside}/32")
    for address in (
        f"64:ff9b::0a14:ff{last:>02}",
        f"2002:0a14:ff{last:>02}::1",
        f"::ffff:{inside}",
    ):
        assert may_be_reached(address, networks)
        assert not may_be_reached(address, ())
        assert not may_be_reached(address, read_networks("10.20.254.0/24"))


def test_a_public_address_is_reached_through_a_translator() -> None:
    assert may_be_reached("64:ff9b::5db8:d70e", ())
    assert not may_be_reached("64:ff9b:0:0:0:1::1", ())


@pytest.mark.parametrize("address", ["4000::1", "239.255.255.250", "ff0e::1"])
def test_nobody_stands_at_what_is_reserved_or_is_many(address: str) -> None:
    assert not may_be_reached(address, ())


def test_a_zone_is_no_part_of_an_address() -> None:
    assert may_be_reached("2606:4700::1%eth0", ())


def test_networks_are_read_as_people_write_them() -> None:
    assert [str(one) for one in read_networks("10.1.2.3/8, ::1,,")] == ["10.0.0.0/8", "::1/128"]
    assert read_networks("") == ()
    with pytest.raises(ValueError, match="does not appear to be"):
        read_networks("10.0.0.0/8, inside")


def test_a_url_has_an_end() -> None:
    fits = "https://acme.example/".ljust(2048, "a")
    assert len(fits) == URL_CHARS_MAX
    assert len(receiver_of(fits, (), plain_http=False).target) == 2048 - len("https://acme.example")
    with pytest.raises(UrlRefused, match="printable ASCII"):
        receiver_of(fits + "a", (), plain_http=False)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "printable ASCII"),
        ("https://[", "cannot be read"),
        ("https://acme.example:65536/", "cannot be read"),
        ("http://acme.example/", "the scheme is https"),
        ("ftp://acme.example/", "the scheme is https"),
        ("https://user@acme.example/", "no user, no password"),
        ("https://:word@acme.example/", "no user, no password"),
        ("https://acme.example/#", "no fragment"),
        ("https://acme.example:0/", "names no host"),
        ("https:///x", "names no host"),
        (f"https://{'a' * 254}/", "names no host"),
        ("https://127.0.0.1/", "may not be reached"),
        ("https://1.2.3/", "may not be reached"),
        ("https://[::1]/", "may not be reached"),
    ],
)
def test_each_refusal_of_a_url_says_why(url: str, why: str) -> None:
    with pytest.raises(UrlRefused, match=why):
        receiver_of(url, (), plain_http=False)


def test_plain_http_is_let_through_where_the_operator_says_so_and_nothing_else_is() -> None:
    found = receiver_of("http://acme.example/x", (), plain_http=True)
    assert (found.scheme, found.port, found.target) == ("http", 80, "/x")
    assert receiver_of("https://acme.example", (), plain_http=True).port == 443
    with pytest.raises(UrlRefused, match="the scheme is https"):
        receiver_of("ftp://acme.example/", (), plain_http=True)


def test_ports_hosts_and_targets_are_taken_as_they_are_written() -> None:
    def read(url: str) -> tuple[str, int, str]:
        found = receiver_of(url, read_networks("127.0.0.0/8, ::1/128"), plain_http=False)
        return found.host, found.port, found.target

    assert read("https://acme.example:1/") == ("acme.example", 1, "/")
    assert read("https://acme.example:65535/?") == ("acme.example", 65535, "/")
    assert read("https://acme.example?a=b") == ("acme.example", 443, "/?a=b")
    assert read(f"https://{'a' * 253}/p") == ("a" * 253, 443, "/p")
    assert read("https://127.0.0.1/") == ("127.0.0.1", 443, "/")
    assert read("https://[::1]:8443/") == ("::1", 8443, "/")


def test_the_path_of_a_receiver_is_not_shown() -> None:
    """It may hold a receiver's secret."""
    assert "hush" not in repr(receiver_of("https://acme.example/hush", (), plain_http=False))
