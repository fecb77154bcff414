"""A cursor holds its whole place, to the last bit of each number."""

from __future__ import annotations

from uuid import UUID

import pytest

from effect_contracts.event_stream import Place, cursor_of, place_of

TENANT, EPOCH_ID = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize("bit", range(64))
def test_no_bit_of_a_place_is_lost_in_its_cursor(bit: int) -> None:
    one = 1 << bit
    places = [
        Place((1 << 32) | one, 7, UUID(int=9), 3),
        Place(1 << 32, one, UUID(int=9), 3),
        Place(1 << 32, 7, UUID(int=one), 3),
        Place(1 << 32, 7, UUID(int=one << 64), 3),
        Place(1 << 32, 7, UUID(int=9), 1 << bit % 32),
    ]
    for place in places:
        cursor = cursor_of(place, TENANT, EPOCH_ID)
        assert place_of(cursor, TENANT, {place.epoch: EPOCH_ID}) == place
