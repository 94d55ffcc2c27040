"""What an embedder can output on a box of images: interval and linear bounds, and bounds on pairs."""

from holdfast.bounds.box import Box, image_box
from holdfast.bounds.graph import Graph, trace
from holdfast.bounds.interval import interval_bounds
from holdfast.bounds.pairs import distance_bounds

__all__ = ["Box", "Graph", "distance_bounds", "image_box", "interval_bounds", "trace"]
