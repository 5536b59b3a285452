"""Server metrics in the Prometheus text format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from nmt.serve.models import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Number of requests by path and status, and their total duration by path."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request. path: that of its route; raw paths would let clients create unlimited labels"""
        self._requests[path, status] += 1
        self._seconds[path] += seconds

    def render(self, models: Iterable[ServedModel]) -> str:
        """Return the text of `GET /metrics`."""
        served = {f'model="{model.name}"': model for model in models}
        memories = {label: model.memory for label, model in served.items() if model.memory}
        requests = {f'path="{path}",status="{status}"': count for (path, status), count in self._requests.items()}
        seconds = {f'path="{path}"': value for path, value in self._seconds.items()}
        lines = {label: model.batcher.num_items for label, model in served.items()}
        batches = {label: model.batcher.num_batches for label, model in served.items()}
        waiting = {label: model.batcher.num_waiting for label, model in served.items()}
        looked_up: dict[str, float] = {}
        for label, memory in memories.items():
            looked_up[f'{label},result="reused"'] = memory.num_reused
            looked_up[f'{label},result="missing"'] = memory.num_missing
        errors = {label: memory.num_errors for label, memory in memories.items()}
        items = "Lines translated or reused from the translation memory, pairs scored, and attentions computed."
        searches = "Lines by result of the translation memory lookup; with keep, each repeated search of a line counts."
        return (
            _metric("nmt_requests_total", "counter", "Finished requests.", requests)
            + _metric("nmt_request_seconds_total", "counter", "Total duration of finished requests.", seconds)
            + _metric("nmt_lines_total", "counter", items, lines)
            + _metric("nmt_batches_total", "counter", "Batches of the items counted in nmt_lines_total.", batches)
            + _metric("nmt_queue_lines", "gauge", "Lines, pairs and attention requests in the queue.", waiting)
            + _metric("nmt_memory_lines_total", "counter", searches, looked_up)
            + _metric("nmt_memory_errors_total", "counter", "Failed accesses to the translation memory.", errors)
        )


def _metric(name: str, kind: str, description: str, samples: Mapping[str, float]) -> str:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    return "\n".join([*lines, *(f"{name}{{{labels}}} {value}" for labels, value in samples.items())]) + "\n"
