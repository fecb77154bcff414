"""Every kind of write is known as progress, or known as none."""

from __future__ import annotations

from typing import Any, get_args

from effect_broker.protocol import ports
from effect_broker.protocol.progress import adds_a_fact

PROGRESS = {
    ports.StartAttempt,
    ports.ExtendAttempt,
    ports.LoseAttempt,
    ports.RecordOutcome,
    ports.AddEvidence,
    ports.FenceMutation,
    ports.AddReceipt,
    ports.AskToReconcile,
    ports.AddApproval,
    ports.KeepPace,
}
# They move, bind or keep what stands, or go with a write of the others.
NONE = {
    ports.Acknowledge,
    ports.AddResolution,
    ports.Advance,
    ports.AskToCancel,
    ports.BindTarget,
    ports.BindWire,
    ports.FreezeContract,
    ports.Requeue,
    ports.StorePayload,
}


def test_a_write_of_a_new_kind_is_judged_by_a_person() -> None:
    assert set(get_args(ports.Write)) == PROGRESS | NONE
    assert not PROGRESS & NONE


def test_a_write_is_progress_as_this_table_says() -> None:
    for kind in PROGRESS | NONE:
        blank: Any = object.__new__(kind)  # what it holds makes no difference
        assert adds_a_fact(blank) is (kind in PROGRESS), kind.__name__
