"""The words of reasons, as the command line imports them (`effect_broker.reasons` owns them)."""

from __future__ import annotations

from effect_broker.reasons import LISTED as LISTED
from effect_broker.reasons import WORDS as WORDS
from effect_broker.reasons import Words as Words
from effect_broker.reasons import words_of as words_of
