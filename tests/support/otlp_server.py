"""An OpenTelemetry collector of metrics: real HTTP, real protocol buffers, everything kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from typing_extensions import Self

from tests.stack.process import LOOPBACK


@dataclass(frozen=True)
class Point:
    """One value of a metric."""

    name: str
    value: float
    tags: dict[str, str]


@dataclass
class OtlpServer:
    """Takes what `OTEL_EXPORTER_OTLP_ENDPOINT` points at."""

    points: list[Point] = field(default_factory=list)

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    collector.points.extend(_points(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="otlp", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def airflow_env(self) -> dict[str, str]:
        """Airflow's settings: a process sends once, as it ends."""
        return {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOOPBACK}:{self._server.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
        }

    def of_dag(self, dag_id: str) -> dict[str, float]:
        """The newest value of each metric that is tagged with the DAG."""
        return {point.name: point.value for point in self.points if point.tags.get("dag_id") == dag_id}


def _points(body: bytes) -> list[Point]:
    request = ExportMetricsServiceRequest.FromString(body)
    metrics = [m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics]
    return [
        Point(
            metric.name,
            point.as_double if point.HasField("as_double") else float(point.as_int),
            {attribute.key: attribute.value.string_value for attribute in point.attributes},
        )
        for metric in metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    ]
