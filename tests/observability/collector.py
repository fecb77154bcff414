"""A collector of spans: OTLP over HTTP, as the exporter of a real process speaks it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class SeenSpan:
    """One span as it arrived."""

    name: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    events: tuple[str, ...]

    def told(self, name: str) -> Any:
        """An attribute of ours, None without it."""
        return self.attributes.get(f"effect_broker.{name}")


class Collector:
    """Listens on a free port of the loopback address while the block runs."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Receiving(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiving)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process send its spans here, and soon."""
        return {
            "EFFECT_BROKER_TRACING": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def spans(self) -> list[SeenSpan]:
        """All spans so far."""
        return [span for body in list(self.bodies) for span in _spans(body)]


def _spans(body: bytes) -> list[SeenSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        SeenSpan(
            name=span.name,
            process=_attributes(resource.resource.attributes)["effect_broker.process"],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            attributes=_attributes(span.attributes),
            events=tuple(event.name for event in span.events),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
