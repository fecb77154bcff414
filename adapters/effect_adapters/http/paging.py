"""From one page of a look-up to the next: whether there is one, and where.

A list counts as complete only if its end was read. What cannot or may not be read any further (a
page too many, a cursor that comes back, a link to another origin) is `Undecided`.
"""

from __future__ import annotations

import re
from typing import Any, Final, assert_never
from urllib.parse import urljoin

from effect_adapters.answers import id_text
from effect_adapters.base import RenderError
from effect_adapters.http.classify import Reading
from effect_adapters.http.exchange import Reply
from effect_adapters.http.rendering import same_origin_url, with_parameter
from effect_contracts.expressions import search
from effect_contracts.http_settings import (
    CursorPaging,
    LinkPaging,
    NoPaging,
    NumberedPaging,
    ProbeRequest,
)

_LINK: Final = re.compile(r"<([^<>]*)>((?:\s*;[^,<]*)*)")
_REL_NEXT: Final = re.compile(r";\s*rel\s*=\s*(\"[^\"]*\"|[^\s;,]+)", re.IGNORECASE)


_EMPTY: Final[tuple[Any, ...]] = ("", [], {})


class Undecided(Exception):
    """This answer proves nothing; `code` says why."""

    def __init__(self, code: str, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after_seconds = retry_after


class Pager:
    """Where the next page is, and whether there is one."""

    def __init__(self, probe: ProbeRequest) -> None:
        self._paging = probe.paging
        self._asked: set[str] = set()
        self.pages = 0

    def first(self, url: str) -> str:
        if isinstance(self._paging, NumberedPaging):
            url = with_parameter(url, self._paging.parameter, str(self._paging.first))
        self._asked.add(url)
        return url

    def after(self, url: str, reading: Reading, items: list[Any]) -> str | None:
        """Return the next page's URL, None at the end of a complete list.

        Raises:
            Undecided: there is more, and it cannot or may not be read.
        """
        self.pages += 1
        following = self._following(url, reading, items)
        if following is None:
            return None
        if isinstance(self._paging, NoPaging) or self.pages >= self._paging.pages_max:
            raise Undecided("pages_unread")
        if following in self._asked:
            raise Undecided("pages_repeat")
        self._asked.add(following)
        return following

    def _following(self, url: str, reading: Reading, items: list[Any]) -> str | None:
        paging = self._paging
        body = reading.json_or_none
        match paging:
            case NoPaging(has_more=has_more):
                return url if has_more is not None and _true(search(has_more, body)) else None
            case CursorPaging():
                if paging.has_more is not None and not _true(search(paging.has_more, body)):
                    return None
                cursor = search(paging.next, body)
                if not _true(cursor):
                    if paging.has_more is not None:
                        raise Undecided("cursor_missing")
                    return None
                text = id_text(cursor)
                if text is None:
                    raise Undecided("cursor_invalid")
                return with_parameter(url, paging.parameter, text)
            case NumberedPaging():
                if not items:
                    return None
                if paging.has_more is not None and not _true(search(paging.has_more, body)):
                    return None
                return with_parameter(url, paging.parameter, str(paging.first + self.pages))
            case LinkPaging():
                return _link_next(url, reading.reply)
            case never:
                assert_never(never)


def _link_next(url: str, reply: Reply) -> str | None:
    for name, value in reply.headers:
        if name != "link":
            continue
        for target, parameters in _LINK.findall(value):
            relation = _REL_NEXT.search(parameters)
            if relation is None or "next" not in relation.group(1).strip('"').lower().split():
                continue
            try:
                return same_origin_url(url, urljoin(url, target))
            except (RenderError, ValueError):
                raise Undecided("link_refused") from None
    return None


def _true(value: Any) -> bool:
    """JMESPath's own truth: empty texts, lists and objects, false and null are not."""
    return not (value is None or value is False or value in _EMPTY)
