"""The crash matrix, cell by cell: real SIGKILLs, judged by the target's own ledger."""

from __future__ import annotations

import pytest

from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.matrix import CELLS, Cell, run_cell
from effect_broker.store import demo_ledger


@pytest.fixture(scope="module", autouse=True)
def ledger(broker: ProofBroker) -> None:
    """The transactional target."""
    demo_ledger.create(broker.superuser_url)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_killed_process_leaves_neither_a_duplicate_nor_a_loss(
    broker: ProofBroker, cell: Cell
) -> None:
    result = run_cell(broker, cell)
    assert not result.problems, f"{result.counted}: {'; '.join(result.problems)}"
