"""What a service measures of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True)
class GalleryState:
    """What is counted of a gallery."""

    name: str
    images: int
    generation: int
    up: bool


class _Galleries:
    def __init__(self, states: Callable[[], Iterable[GalleryState]]) -> None:
        self._states = states

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The galleries as they are when they are asked about."""
        families = [
            GaugeMetricFamily("holdfast_gallery_up", "1 if the gallery answers.", labels=["gallery"]),
            GaugeMetricFamily("holdfast_gallery_images", "Images of the gallery.", labels=["gallery"]),
            GaugeMetricFamily("holdfast_gallery_generation", "Writes committed to it.", labels=["gallery"]),
        ]
        for state in self._states():
            for family, value in zip(families, (state.up, state.images, state.generation), strict=True):
                family.add_metric([state.name], float(value))
        yield from families


class Metrics:
    """Counters of one service; none are shared with another one in the same process."""

    def __init__(self, galleries: Callable[[], Iterable[GalleryState]]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Galleries(galleries))
        own = self.registry
        self.requests = Counter(
            "holdfast_requests", "Requests answered.", ["route", "method", "status"], registry=own
        )
        self.seconds = Histogram(
            "holdfast_request_seconds",
            "From the first byte to the last.",
            ["route"],
            buckets=SECONDS,
            registry=own,
        )
        self.under_way = Gauge("holdfast_requests_under_way", "Requests being answered.", registry=own)
        self.waiting = Gauge(
            "holdfast_waiting", "Under way or waiting, by kind of work.", ["work"], registry=own
        )
        self.batches = Histogram(
            "holdfast_batch_size",
            "Plain searches answered together.",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=own,
        )
        self.verdicts = Counter(
            "holdfast_verdicts", "Hits by what is proved of them.", ["verdict"], registry=own
        )

    def text(self) -> bytes:
        """Everything, in Prometheus' format."""
        return generate_latest(self.registry)
