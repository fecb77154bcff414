"""Powertools for AWS Lambda: a handler under `@idempotent`, its table in a DynamoDB made by moto.

One process is one execution environment of Lambda: it has one invocation at a time, so that eight
callers are eight processes. The key is the event's `order`, and the downstream key as well. The
Lambda's own timeout, which its in-progress expiry follows, is the lease that all peers get.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,import-untyped,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import boto3
import httpx
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
)
from botocore.exceptions import EndpointConnectionError

from bench.peers_of.program import LEASE_SECONDS, POST_SECONDS, Order, Peer, Place, main

TABLE = "idempotency"


class Invocation:
    """What Lambda tells a handler of the time that is left."""

    def __init__(self) -> None:
        self._begun = perf_counter()

    def get_remaining_time_in_millis(self) -> int:
        """As the Lambda context has it."""
        return int((LEASE_SECONDS - (perf_counter() - self._begun)) * 1000)


class Powertools(Peer):
    """A library in front of a table: whoever calls also sends."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{place.ports[0]}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_LAMBDA_FUNCTION_NAME": "effect",
        }

    def version(self) -> str:
        return f"{version('aws-lambda-powertools')}, moto {version('moto')}"

    def server(self) -> list[str]:
        listen = ["-H", "127.0.0.1", "-p", str(self.place.ports[0])]
        return [str(Path(sys.executable)), "-m", "moto.server", *listen]

    async def prepare(self) -> None:
        client = boto3.client("dynamodb")
        while True:
            try:
                client.create_table(
                    TableName=TABLE,
                    KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
                return
            except EndpointConnectionError:
                await asyncio.sleep(0.1)  # the server is starting; the benchmark limits the wait

    async def open(self, clients: int) -> None:
        http = httpx.Client(trust_env=False, timeout=POST_SECONDS)
        self._table = boto3.client("dynamodb")

        @idempotent(
            config=IdempotencyConfig(event_key_jmespath="order"),
            persistence_store=DynamoDBPersistenceLayer(table_name=TABLE),
        )
        def handler(event: dict[str, Any], context: Invocation) -> Any:
            headers = {"Idempotency-Key": event["order"]}
            answer = http.post(event["url"], json=event["body"], headers=headers)
            return answer.raise_for_status().json()

        self._handler = handler

    async def call(self, order: Order) -> Any:
        event = {"order": order.key, "url": self.url(order.kind), "body": order.body}
        return await asyncio.to_thread(self._handler, event, Invocation())

    async def state(self, order: Order) -> tuple[str, bool]:
        hashed = hashlib.md5(json.dumps(order.key).encode()).hexdigest()
        items = self._table.scan(TableName=TABLE, ConsistentRead=True)["Items"]
        (found,) = [item for item in items if item["id"]["S"].endswith(hashed)]
        return found["status"]["S"], False


if __name__ == "__main__":
    main(Powertools)
