"""Operation keys that are probably not the name of an intent.

An operation key protects only if the next try of the same intent comes with the same key. A key
that is made new on every try (random, or of the clock), or that names a position in a program
("step 3"), lets a retry be a second effect, or makes two intents one. Nobody can prove that from
the key alone: this is a hint for a person, and it shows shapes, never the keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Suspicion(StrEnum):
    """Why a key looks wrong."""

    RANDOM = "random"
    TIME = "time"
    POSITION = "position"


MEANINGS: Final = {
    Suspicion.RANDOM: (
        "look random: if they are made anew for every try, a retry is a second effect. A random "
        "id is right only where it is that of a stored business object"
    ),
    Suspicion.TIME: "hold the time: the next try has another time, and so is a second effect",
    Suspicion.POSITION: (
        "name a place in a program or a conversation: a changed plan gives the same place to "
        "another intent"
    ),
}


@dataclass(frozen=True, slots=True)
class KeyScope:
    """One suspicion over a sample: how many keys, and the commonest of their shapes."""

    suspicion: Suspicion
    keys: int
    shapes: tuple[str, ...]


_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-(?P<version>[0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    # Without hyphens only version 4 is told from a digest, and that by chance in 1 of 64.
    r"|(?<![0-9a-f])[0-9a-f]{12}(?P<bare>4)[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])",
    re.I,
)
# ULID: 26 of Crockford's base32, the first of which is 0 to 7.
_ULID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ISO_TIME: Final = re.compile(
    r"20[0-9]{2}-?[01][0-9]-?[0-3][0-9][T_ ]?[0-2][0-9][:\-]?[0-5][0-9]([:\-]?[0-5][0-9])?"
    r"([.,][0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})?",
)
# Seconds, milli-, micro- or nanoseconds since 1970 between 2017 and 2033.
_EPOCH: Final = re.compile(r"(?:1[5-9])[0-9]{8}(?:\.[0-9]+|[0-9]{3}|[0-9]{6}|[0-9]{9})?")
_HEX: Final = re.compile(r"[0-9a-f]{16,}", re.I)
_MIXED: Final = re.compile(r"[A-Za-z0-9]{20,}")
_WORD: Final = re.compile(r"[A-Za-z]+")
_NUMBER: Final = re.compile(r"[0-9]+")
_PART: Final = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+")

# Words that say where in a program the caller is. They are shown; every other word is not.
_PLACES: Final = frozenset(
    {"step", "attempt", "retry", "try", "call", "turn", "index", "idx", "iteration", "iter",
     "round", "task", "action", "tool", "toolcall", "node", "message", "msg", "seq", "no", "run"}
)  # fmt: skip
_SHAPES_SHOWN: Final = 3
_DIGEST_HEX_CHARS: Final = frozenset({32, 40, 56, 64, 96, 128})


def suspicion_of(key: str) -> Suspicion | None:
    """Return why this key looks wrong, None if it looks like the name of an intent."""
    versions = [_version(match) for match in _UUID.finditer(key)]
    rest = _UUID.sub(" ", key)
    if any(version in "167" for version in versions):
        return Suspicion.TIME
    if _ULID.search(rest) or _ISO_TIME.search(rest) or _stands_alone(_EPOCH, rest):
        return Suspicion.TIME
    if "4" in versions and not _names_something(rest, key):
        return Suspicion.RANDOM
    if not versions and _is_noise(rest):
        return Suspicion.RANDOM
    if _is_place(rest) and not versions:
        return Suspicion.POSITION
    return None


def key_scopes(keys: Iterable[str]) -> tuple[KeyScope, ...]:
    """Return what is suspicious in a sample, by kind."""
    shapes: dict[Suspicion, Counter[str]] = {}
    for key in keys:
        suspicion = suspicion_of(key)
        if suspicion is not None:
            shapes.setdefault(suspicion, Counter())[shape(key)] += 1
    return tuple(
        KeyScope(
            s, sum(shapes[s].values()), tuple(n for n, _ in shapes[s].most_common(_SHAPES_SHOWN))
        )
        for s in Suspicion
        if s in shapes
    )


def shape(key: str) -> str:
    """Return the key without its content: what each part is, and the signs between the parts."""
    text = _UUID.sub(lambda match: f"\0uuid{_version(match)}\0", key)
    text = _ULID.sub("\0ulid\0", text)
    text = _ISO_TIME.sub("\0time\0", text)
    text = re.sub(rf"(?<![0-9A-Za-z]){_EPOCH.pattern}(?![0-9A-Za-z])", "\0time\0", text)
    pieces = text.split("\0")
    shown = [
        f"<{piece}>" if number % 2 else _shape_of_words(piece)
        for number, piece in enumerate(pieces)
    ]
    return "".join(shown)


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
    if part.isdigit():
        return "<n>"
    if part.isalpha():
        return part.lower() if part.lower() in _PLACES else "<word>"
    return part


def _stands_alone(pattern: re.Pattern[str], text: str) -> bool:
    return any(pattern.fullmatch(part) for part in re.split(r"[^0-9.]+", text))


def _version(match: re.Match[str]) -> str:
    return str(match["version"] or match["bare"]).lower()


def _names_something(rest: str, key: str) -> bool:
    """Whether a number that could be a business id is left beside a random one, or the random one
    stands between an object's kind and a verb, as the id of a stored object does."""
    if _NUMBER.search(rest):
        return True
    return bool(_WORD.match(key) and not _UUID.match(key) and _WORD.search(_UUID.split(key)[-1]))


def _is_noise(text: str) -> bool:
    """Whether nothing but words stands beside one long run of mixed letters and digits.

    Runs of a digest's length are not noise: a hash of the business identity is a good key.
    """
    runs = re.findall(r"[A-Za-z0-9]+", text)
    noisy = [
        run
        for run in runs
        if (_HEX.fullmatch(run) or _MIXED.fullmatch(run))
        # Letters and digits take turns in what a machine has made.
        and len(_NUMBER.findall(run)) >= 2
        and not (_HEX.fullmatch(run) and len(run) in _DIGEST_HEX_CHARS)
    ]
    others = [run for run in runs if run not in noisy]
    return bool(noisy) and not any(_NUMBER.search(run) for run in others)


def _is_place(text: str) -> bool:
    """Whether the key is made of places and numbers only: "step-3", "tool_call_0:attempt2"."""
    words = [word.lower() for word in _WORD.findall(text)]
    numbers = _NUMBER.findall(text)
    return bool(words) and bool(numbers) and all(word in _PLACES for word in words)
