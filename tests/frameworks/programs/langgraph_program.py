"""LangGraph: a node that is retried, resumed, interrupted, replayed and forked."""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, interrupt
from sightings import key_or_refusal, sighted

from effect_broker.operation_keys.langgraph import node_key


class State(TypedDict):
    """What the graph passes on."""

    order: str


class Now:
    """What is going on: how often the node still fails, and whether it asks a person."""

    scenario = ""
    failures = 0
    asks = False


def plan(state: State) -> State:
    """Stand for what comes before."""
    return state


def charge(state: State, config: RunnableConfig, runtime: Runtime[Any]) -> State:
    """Tells what it is called with, and then does what the scenario says."""
    info = runtime.execution_info
    assert info is not None
    sighted(
        Now.scenario,
        {
            "thread_id": info.thread_id,
            "task_id": info.task_id,
            "checkpoint_id": info.checkpoint_id,
            "attempt": info.node_attempt,
            "configured_thread": config["configurable"].get("thread_id"),
        },
        {
            "thread": key_or_refusal(lambda: node_key(info, "charge")),
            "task": key_or_refusal(lambda: node_key(info, "charge", scope="task")),
            "with_task_id": key_or_refusal(lambda: node_key(info, "charge", info.task_id)),
        },
    )
    if Now.failures:
        Now.failures -= 1
        raise ConnectionError("the node fails")
    if Now.asks:
        interrupt("is it right?")
    return state


def graph(*, attempts: int, remembers: bool = True) -> Any:
    """Return a graph of two nodes, the second of which is tried so often."""
    built = StateGraph(State)
    built.add_node("plan", plan)
    policy = RetryPolicy(max_attempts=attempts, initial_interval=0.01, retry_on=ConnectionError)
    built.add_node("charge", charge, retry_policy=policy)
    built.add_edge(START, "plan")
    built.add_edge("plan", "charge")
    built.add_edge("charge", END)
    return built.compile(checkpointer=InMemorySaver() if remembers else None)


def _thread(scenario: str) -> dict[str, Any]:
    Now.scenario = scenario
    return {"configurable": {"thread_id": f"thread-{scenario}"}}


def main() -> None:
    """Run every scenario, each in a thread of its own."""
    order: State = {"order": "42"}

    config = _thread("retry")
    Now.failures = 1
    graph(attempts=2).invoke(order, config)

    config = _thread("resume")
    Now.failures = 1
    failing = graph(attempts=1)
    try:
        failing.invoke(order, config)
    except ConnectionError:
        failing.invoke(None, config)

    config = _thread("interrupt")
    Now.asks = True
    asking = graph(attempts=1)
    asking.invoke(order, config)
    asking.invoke(Command(resume="yes"), config)
    Now.asks = False

    for scenario in ("replay", "fork"):
        config = _thread(scenario)
        whole = graph(attempts=1)
        whole.invoke(order, config)
        before_plan = next(s for s in whole.get_state_history(config) if s.next == ("plan",))
        earlier = before_plan.config
        if scenario == "fork":
            earlier = whole.update_state(earlier, {"order": "42"})
        whole.invoke(None, earlier)

    config = _thread("replay_at_the_node")
    whole = graph(attempts=1)
    whole.invoke(order, config)
    before_charge = next(s for s in whole.get_state_history(config) if s.next == ("charge",))
    whole.invoke(None, before_charge.config)

    config = _thread("second_turn")
    whole = graph(attempts=1)
    whole.invoke(order, config)
    whole.invoke(order, config)

    Now.scenario = "without_checkpointer"
    for _ in range(2):
        graph(attempts=1, remembers=False).invoke(order)


if __name__ == "__main__":
    main()
