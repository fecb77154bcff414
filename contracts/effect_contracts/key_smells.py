"""Operation keys that are probably not the name of an intent.

An operation key protects only if the next try of the same intent comes with the same key. A key
that is made anew on every try (random, or of the clock), or that names a place in a program or in
a conversation, lets a retry be a second effect, or makes two intents one. Nobody can prove that
from the key alone: this is a hint for a person, and nothing is refused because of it. It shows
shapes, never keys.

Of two doubtful readings the harmless one is taken. An id that stands between an object's kind and
what is done to it, or beside another number, is that of a stored object: `order:<uuid>:charge`. A
date is part of many intents; a time of day is of few.
"""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import pairwise
from typing import Final

# The first part of a key that says: the model's answer is stored before its tools run.
STORED_CALL: Final = "stored-call"


class Smell(StrEnum):
    """Why a key looks wrong."""

    RANDOM = "random"
    TIME = "time"
    POSITION = "position"
    TOOL_CALL = "tool_call"


MEANINGS: Final = {
    Smell.RANDOM: (
        "look random: if they are made anew for every try, a retry is a second effect. A random "
        "id is right only where it is that of a stored business object"
    ),
    Smell.TIME: "hold the time: the next try has another time, and so is a second effect",
    Smell.POSITION: (
        "name a place in a program or a conversation: a changed plan gives the same place to "
        "another intent"
    ),
    Smell.TOOL_CALL: (
        "are a model's ids of tool calls: it makes another one when it is asked again, and so a "
        "second effect"
    ),
}

_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-(?P<version>[0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    # Without hyphens only version 4 is told from a digest, and that by chance in 1 of 64.
    r"|(?<![0-9a-f])[0-9a-f]{12}(?P<bare>4)[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])",
    re.I,
)
# RFC 9562: versions 1, 6 and 7 hold the time. 3, 5 and 8 are functions of something.
_TIMED_VERSIONS: Final = frozenset("167")
_RANDOM_VERSIONS: Final = frozenset("4")
# ULID: 26 of Crockford's base32, the first of which is 0 to 7.
_ULID: Final = re.compile(r"(?<![0-9A-Za-z])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![0-9A-Za-z])")
# A date, a time of day, and mostly the seconds. Twelve bare digits are an order number too often.
_ISO_TIME: Final = re.compile(
    r"(?<![0-9])20[0-9]{2}(?:"
    r"-?[01][0-9]-?[0-3][0-9][T_ ][0-2][0-9][:\-]?[0-5][0-9](?:[:\-]?[0-5][0-9](?:[.,][0-9]+)?)?"
    r"|-[01][0-9]-[0-3][0-9]-[0-2][0-9][:\-][0-5][0-9](?:[:\-][0-5][0-9])?"
    r"|[01][0-9][0-3][0-9][0-2][0-9][0-5][0-9][0-5][0-9]"
    r")(?:Z|[+-][0-9]{2}:?[0-9]{2})?(?![0-9])"
)
# Seconds, milli-, micro- or nanoseconds since 1970, from 2017 to 2033.
_EPOCH: Final = re.compile(
    r"(?<![0-9A-Za-z.])1[5-9][0-9]{8}(?P<finer>\.[0-9]+|[0-9]{3}|[0-9]{6}|[0-9]{9})?(?![0-9A-Za-z])"
)
# As models and the servers in front of them write them. Two of the beginnings are words too.
_TOOL_CALL: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"(?:toolu|tooluse|pyd_ai)_[0-9A-Za-z_-]{8,}|chatcmpl-tool-[0-9a-f]{8,}"
    r"|(?:call|fc)_(?=[A-Za-z]*[0-9])[0-9A-Za-z]{16,}"
    r")"
)
_HEX: Final = re.compile(r"[0-9a-f]{16,}", re.I)
_MIXED: Final = re.compile(r"[A-Za-z0-9]{20,}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_+/=-]{20,}")
_WORD: Final = re.compile(r"[A-Za-z]+")
_NUMBER: Final = re.compile(r"[0-9]+")
_PART: Final = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+")
_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
# The first places of a list. Higher ones may be numbers of objects.
_INDEX: Final = re.compile(r"[^0-9]*[^0-9A-Za-z.]\[?[01]\]?")
_BARE_INDEX: Final = re.compile(r"[0-9]{1,3}")

# Words that say where in a program the caller is. They are shown; every other word is not.
_PLACES: Final = frozenset(
    {"step", "attempt", "retry", "try", "call", "turn", "index", "idx", "iteration", "iter",
     "round", "task", "action", "tool", "toolcall", "node", "message", "msg", "seq", "no", "run"}
)  # fmt: skip
_DIGEST_HEX_CHARS: Final = frozenset({32, 40, 56, 64, 96, 128})
# Neighbours in random base64 are of different kinds (upper, lower, digit) in 62 of 100 cases, in
# CamelCase with a number in about 40.
_KIND_CHANGES_MIN: Final = 0.48
# Of base64url's 64 signs two are no letters or digits. Names have more of them.
_SIGNS_SHARE_MAX: Final = 1 / 8


def key_smells(key: str) -> tuple[Smell, ...]:
    """Return why this key looks wrong, the plainest reason first; empty if it looks like a name.

    A pure function of the text, which need not be a valid key. It is a hint and no judgement: keep
    to the rules of docs/operation-keys.md, not to its silence.
    """
    found = []
    if _is_tool_call(key):
        found.append(Smell.TOOL_CALL)
    rest = _without_ids(key)
    numbered = rest != key and bool(_NUMBER.search(rest))
    named = numbered or _stands_between_words(rest)
    versions = _versions(key)
    bare = _UUID.sub(" ", key)
    moment = _names_a_moment(bare)
    timed = moment or bool(versions & _TIMED_VERSIONS or _ULID.search(bare) or _EPOCH.search(bare))
    # Nothing that is stored has a moment for its id, whatever stands around it.
    if timed and not (numbered if moment else named):
        found.append(Smell.TIME)
    random = versions & _RANDOM_VERSIONS or _is_noisy_somewhere(bare)
    if not found and (_is_made_of_chance(key) or (random and not named)):
        found.append(Smell.RANDOM)
    if not versions and not timed and _is_place(key):
        found.append(Smell.POSITION)
    return tuple(found)


def key_shape(key: str) -> str:
    """Return the key without its content: what each part is, and the signs between the parts."""
    text = _PERCENT.sub("\0other\0", key)
    text = _UUID.sub(lambda match: f"\0uuid{_version(match)}\0", text)
    text = _ULID.sub("\0ulid\0", text)
    text = _TOOL_CALL.sub("\0call\0", text)
    text = _ISO_TIME.sub("\0time\0", text)
    text = _EPOCH.sub("\0time\0", text)
    if _is_token(text):
        return f"<text{len(text)}>"
    pieces = text.split("\0")
    return "".join(
        f"<{piece}>" if number % 2 else _shape_of_words(piece)
        for number, piece in enumerate(pieces)
    )


def _shape_of_words(text: str) -> str:
    pieces = []
    for run in re.findall(r"[A-Za-z0-9]+|[^A-Za-z0-9]+", text):
        if _HEX.fullmatch(run) and _NUMBER.search(run) and _WORD.search(run):
            pieces.append(f"<hex{len(run)}>")
        elif _MIXED.fullmatch(run) and _NUMBER.search(run) and _WORD.search(run):
            pieces.append(f"<text{len(run)}>")
        else:
            pieces += [_part(part) for part in _PART.findall(run)]
    return "".join(pieces)


def _part(part: str) -> str:
    if not (part.isascii() and part.isprintable()):
        return "<other>"
    if part.isdigit():
        return "<n>"
    if part.isalpha():
        return part.lower() if part.lower() in _PLACES else "<word>"
    return part


def _version(match: re.Match[str]) -> str:
    return str(match["version"] or match["bare"]).lower()


def _versions(key: str) -> set[str]:
    return {_version(match) for match in _UUID.finditer(key)}


def _names_a_moment(text: str) -> bool:
    """Whether it holds what no counter reaches: a time of day with its date, or milliseconds."""
    return bool(_ISO_TIME.search(text) or any(m["finer"] for m in _EPOCH.finditer(text)))


def _without_ids(key: str) -> str:
    """The key without what could be an id that nobody has chosen, or a time."""
    text = _UUID.sub(" ", key)
    for pattern in (_ULID, _ISO_TIME, _EPOCH):
        text = pattern.sub(" ", text)
    return re.sub(r"[A-Za-z0-9]+", lambda run: " " if _is_noisy(run[0]) else run[0], text)


def _stands_between_words(rest: str) -> bool:
    """Whether an object's kind and what is done to it stand around what nobody has chosen."""
    return bool(_WORD.match(rest) and re.search(r"\s.*[A-Za-z]{2}", rest))


def _is_tool_call(key: str) -> bool:
    if key.startswith(f"{STORED_CALL}:"):
        return False
    return bool(_TOOL_CALL.search(key))


def _is_made_of_chance(key: str) -> bool:
    """Whether the key as a whole is hex or base64 of something.

    Nobody can tell a digest from chance, nor see what it is a digest of.
    """
    if _HEX.fullmatch(key) and not _UUID.fullmatch(key):
        return bool(_NUMBER.search(key) and _WORD.search(key))
    return _is_token(key)


def _is_noisy_somewhere(text: str) -> bool:
    return any(_is_noisy(run) for run in re.findall(r"[A-Za-z0-9]+", text))


def _is_noisy(run: str) -> bool:
    """Whether a run of letters and digits was made by a machine, and is no digest: a hash of the
    business identity is a good key, if it says of what."""
    if _HEX.fullmatch(run):
        return len(run) not in _DIGEST_HEX_CHARS and len(_NUMBER.findall(run)) >= 2
    # Letters and digits take turns in what a machine has made.
    return bool(_MIXED.fullmatch(run)) and len(_NUMBER.findall(run)) >= 2


def _is_token(key: str) -> bool:
    """Whether the key is base64 of something, as far as the turns of its kinds tell."""
    if not _TOKEN.fullmatch(key):
        return False
    kinds = ["u" if c.isupper() else "l" if c.islower() else "d" if c.isdigit() else "-"
             for c in key]  # fmt: skip
    if kinds.count("-") > _SIGNS_SHARE_MAX * len(kinds):
        return False
    changes = sum(a != b for a, b in pairwise(kinds))
    return {"u", "l", "d"} <= set(kinds) and changes >= _KIND_CHANGES_MIN * (len(kinds) - 1)


def _is_place(key: str) -> bool:
    """Whether the key says no more than where it was made: "step-3", "charge-0", "7"."""
    if _BARE_INDEX.fullmatch(key) or _INDEX.fullmatch(key):
        return True
    words = [word.lower() for word in _WORD.findall(key)]
    return bool(words) and bool(_NUMBER.search(key)) and all(word in _PLACES for word in words)
