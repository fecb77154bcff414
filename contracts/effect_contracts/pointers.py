"""JSON Pointers (RFC 6901) as errors name places by them: bounded, and printable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Longer pointers are cut at a member, so that a problem body and a log line stay short whatever
# names the caller chose. A cut pointer still names a place that encloses the one at fault.
POINTER_CHARS_MAX: Final = 512


def json_pointer(tokens: Iterable[str | int]) -> str:
    """Join member names and array indices to a JSON Pointer (RFC 6901).

    The pointer is cut before a name that is not printable (it could forge a log line, and half a
    surrogate pair cannot be encoded) and at `POINTER_CHARS_MAX`. What is left still encloses the
    place. The root is "".
    """
    pointer = ""
    for token in tokens:
        name = str(token)
        if not name.isprintable():
            break
        longer = pointer + "/" + name.replace("~", "~0").replace("/", "~1")
        if len(longer) > POINTER_CHARS_MAX:
            break
        pointer = longer
    return pointer
