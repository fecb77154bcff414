"""What the frameworks' functions refuse, where the real programs do not come by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from effect_broker.operation_keys import KeyRefusal, KeyRefused
from effect_broker.operation_keys.celery import task_key
from effect_broker.operation_keys.dbos import step_key, step_key_async
from effect_broker.operation_keys.langgraph import node_key
from effect_broker.operation_keys.restate import invocation_key
from effect_broker.operation_keys.temporal import activity_key, workflow_key

RUN = "01a22a83-cee5-75c6-af00-84dfd1d21710"


@dataclass(frozen=True)
class Activity:
    activity_id: str = "1"
    activity_run_id: str | None = None
    namespace: str = "default"
    workflow_id: str | None = "order-42"
    workflow_run_id: str | None = RUN


@dataclass(frozen=True)
class Workflow:
    namespace: str = "default"
    workflow_id: str = "order-42"
    first_execution_run_id: str = RUN
    original_execution_run_id: str = RUN
    run_id: str = RUN


@dataclass(frozen=True)
class Node:
    thread_id: str | None = "thread-1"
    task_id: str = "6f8754fd-7fc6-272d-2b1a-d750ae466933"
    checkpoint_id: str = "1f1ec6f5-1d69-6ae0-8001-8bd5bfa345d9"
    run_id: str | None = RUN


@dataclass(frozen=True)
class Stored:
    forked_from: str | None = None
    parent_workflow_id: str | None = None
    app_version: str | None = "1"


@dataclass(frozen=True)
class Engine:
    """Stands for the class `DBOS`, over workflows as they would be stored."""

    workflow_id: str | None = "order-42"
    stored: Mapping[str, Stored] = field(default_factory=lambda: {"order-42": Stored()})

    def get_workflow_status(self, workflow_id: str, /) -> Stored | None:
        return self.stored.get(workflow_id)

    async def get_workflow_status_async(self, workflow_id: str, /) -> Stored | None:
        return self.stored.get(workflow_id)


@dataclass(frozen=True)
class Message:
    id: str | None = "3512b8e3-42a4-4e43-8b64-4480340e791c"


@dataclass(frozen=True)
class Handler:
    invocation: Message = Message("inv_1")

    def request(self) -> Handler:
        return self

    @property
    def id(self) -> str:
        return self.invocation.id or ""


Case = tuple[Callable[[], str], KeyRefusal]
ALONE = Activity("order-42-charge", RUN, "default", None, None)
CASES: list[Case] = [
    (lambda: activity_key(Activity(workflow_run_id=None), "charge"), KeyRefusal.NO_ID),
    (lambda: activity_key(Activity(), 1), KeyRefusal.NO_NAME),
    (lambda: activity_key(Activity(), "charge", f"of-{RUN}"), KeyRefusal.CHANGES),
    (lambda: activity_key(Activity(workflow_id=f"{RUN}_3"), "charge"), KeyRefusal.CHANGES),
    (lambda: activity_key(ALONE, "charge", RUN), KeyRefusal.CHANGES),
    (lambda: activity_key(Activity(), "charge", "attempt-2"), KeyRefusal.ATTEMPT),
    (lambda: workflow_key(Workflow()), KeyRefusal.NO_NAME),
    (lambda: workflow_key(Workflow(), "charge", RUN), KeyRefusal.CHANGES),
    (lambda: node_key(Node()), KeyRefusal.NO_NAME),
    (lambda: node_key(Node(task_id=""), "charge", scope="task"), KeyRefusal.NO_ID),
    (lambda: node_key(Node(), "charge", Node().checkpoint_id), KeyRefusal.CHANGES),
    (lambda: node_key(Node(), "charge", RUN), KeyRefusal.CHANGES),
    (lambda: node_key(Node(thread_id=RUN), "charge"), KeyRefusal.CHANGES),
    (lambda: step_key(Engine()), KeyRefusal.NO_NAME),
    (lambda: step_key(Engine(workflow_id=None), "charge"), KeyRefusal.NO_ID),
    (lambda: step_key(Engine("gone"), "charge"), KeyRefusal.ORIGIN_UNKNOWN),
    (
        lambda: step_key(Engine(stored={"order-42": Stored("order-42")}), "charge"),
        KeyRefusal.ORIGIN_UNKNOWN,
    ),
    (lambda: task_key(Message(), "3512b8e3-42a4-4e43-8b64-4480340e791c"), KeyRefusal.NO_NAME),
    (lambda: task_key(Message(None), "mail"), KeyRefusal.NO_ID),
    (lambda: invocation_key(Handler(Message(None)), "charge"), KeyRefusal.NO_ID),
    (lambda: invocation_key(Handler(), 0), KeyRefusal.NO_NAME),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_an_unstable_key_is_refused_without_being_shown(case: Case) -> None:
    make, reason = case
    with pytest.raises(KeyRefused) as refused:
        make()
    assert refused.value.reason is reason
    assert RUN not in str(refused.value)


async def test_a_child_that_dbos_has_named_is_followed_to_the_origin_of_its_parent() -> None:
    engine = Engine(
        "fork-1-2-5",
        {
            "fork-1-2-5": Stored(parent_workflow_id="fork-1-2"),
            "fork-1-2": Stored(parent_workflow_id="fork-1"),
            "fork-1": Stored(forked_from="order-42"),
            "order-42": Stored(),
        },
    )
    assert step_key(engine, "charge") == "dbos:workflow:order-42-2-5:charge"
    assert await step_key_async(engine, "charge") == step_key(engine, "charge")
    assert await step_key_async(engine, "charge", forks="new") == "dbos:fork:fork-1-2-5:charge"


@pytest.mark.parametrize("between", [(), ("fork-2",)])
def test_a_child_is_not_followed_past_a_fork_to_another_version(between: tuple[str, ...]) -> None:
    forks = ["fork-1", *between, "order-42"]
    stored = {
        "fork-1-2": Stored(parent_workflow_id="fork-1", app_version="2"),
        **{fork: Stored(forked_from=of, app_version="2") for fork, of in pairwise(forks)},
        "order-42": Stored(),
    }
    with pytest.raises(KeyRefused) as refused:
        step_key(Engine("fork-1-2", stored), "charge")
    assert refused.value.reason is KeyRefusal.COUNTED
    # The fork itself has the caller's own name of its step, and no number.
    assert step_key(Engine("fork-1", stored), "charge") == "dbos:workflow:order-42:charge"


def test_a_child_that_its_caller_has_named_keeps_its_name() -> None:
    stored = {
        "payment-42": Stored(parent_workflow_id="fork-1"),
        "fork-1": Stored(forked_from="order-42"),
        "order-42": Stored(),
    }
    engine = Engine("payment-42", stored)
    assert step_key(engine, "charge") == "dbos:workflow:payment-42:charge"
    renamed = replace(engine, workflow_id="fork-1")
    assert step_key(renamed, "charge") == "dbos:workflow:order-42:charge"
