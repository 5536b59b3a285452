"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from nmt.serve.models import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by path and status, and the seconds that they took."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended. path: of a route, since those of clients have no end"""
        self._requests[path, status] += 1
        self._seconds[path] += seconds

    def render(self, models: Iterable[ServedModel]) -> str:
        """The text of `GET /metrics`."""
        batchers = {f'model="{model.name}"': model.batcher for model in models}
        requests = {f'path="{path}",status="{status}"': count for (path, status), count in self._requests.items()}
        seconds = {f'path="{path}"': value for path, value in self._seconds.items()}
        lines = {label: batcher.num_items for label, batcher in batchers.items()}
        batches = {label: batcher.num_batches for label, batcher in batchers.items()}
        waiting = {label: batcher.num_waiting for label, batcher in batchers.items()}
        families = (
            ("nmt_requests_total", "counter", "Requests that have ended.", requests),
            ("nmt_request_seconds_total", "counter", "Seconds that they took.", seconds),
            ("nmt_lines_total", "counter", "Lines that were translated or scored.", lines),
            ("nmt_batches_total", "counter", "Batches of them.", batches),
            ("nmt_queue_lines", "gauge", "Lines in the queue.", waiting),
        )
        return "".join(_family(*family) for family in families)


def _family(name: str, kind: str, about: str, samples: Mapping[str, float]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    return "\n".join([*lines, *(f"{name}{{{labels}}} {value}" for labels, value in samples.items())]) + "\n"
