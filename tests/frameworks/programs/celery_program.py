"""Celery: a task that is retried, delivered again, published again, and called like a function.

Broker and worker are in this process; the messages go through Celery's own memory transport.
"""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from sightings import key_or_refusal, sighted

from effect_broker.operation_keys import from_steps
from effect_broker.operation_keys.celery import task_key

app = Celery("orders", broker="memory://", backend="cache+memory://")
app.conf.update(
    task_acks_late=True,
    broker_connection_retry_on_startup=False,
    broker_transport_options={"polling_interval": 0.01},
    worker_timer_precision=0.01,
)


class Now:
    """Whether the message has gone back to the broker; it does not tell in its second delivery."""

    rejected = False


def _tell(task: Any, scenario: str) -> None:
    request = task.request
    sighted(
        scenario,
        {"id": request.id, "retries": request.retries},
        {
            "task": key_or_refusal(lambda: task_key(request, "charge")),
            "without_a_name": key_or_refusal(lambda: task_key(request, request.retries)),
        },
    )


@app.task(bind=True, max_retries=2)
def charge(self: Any, scenario: str) -> str:
    """Tells what it is called with, and then does what the scenario says."""
    _tell(self, scenario)
    if scenario == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    if scenario == "redelivery" and not Now.rejected:
        Now.rejected = True
        raise Reject("the worker goes away", requeue=True)
    return "charged"


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 0})
def charge_by_itself(self: Any, scenario: str) -> str:
    """Fails once, and is tried again by Celery."""
    _tell(self, scenario)
    if self.request.retries == 0:
        raise ConnectionError("the first try fails")
    return "charged"


def main() -> None:
    """Run every scenario."""
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        charge.apply_async(["retry"]).get(timeout=20, interval=0.01)
        charge_by_itself.apply_async(["autoretry"]).get(timeout=20, interval=0.01)
        charge.apply_async(["redelivery"]).get(timeout=20, interval=0.01)
        for _ in range(2):
            charge.apply_async(["published_again"]).get(timeout=20, interval=0.01)
        for _ in range(2):
            own_id = from_steps("order", 42, "charge")
            charge.apply_async(["own_id"], task_id=own_id).get(timeout=20, interval=0.01)
            charge.AsyncResult(own_id).forget()
        for _ in range(2):
            charge("like_a_function")
        # A worker takes seconds to stop, and nothing of it is wanted any more.
        os._exit(0)


if __name__ == "__main__":
    main()
