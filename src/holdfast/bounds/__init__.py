"""What an embedder can output on a box of images: interval and linear bounds, and bounds on pairs."""

from holdfast.bounds.box import Box, image_box, normalised
from holdfast.bounds.graph import Graph, trace
from holdfast.bounds.interval import interval_bounds
from holdfast.bounds.linear import Intermediate, Relaxation, linear_bounds, linear_box
from holdfast.bounds.pairs import box_distance_bounds, distance_bounds

__all__ = [
    "Box",
    "Graph",
    "Intermediate",
    "Relaxation",
    "box_distance_bounds",
    "distance_bounds",
    "image_box",
    "interval_bounds",
    "linear_bounds",
    "linear_box",
    "normalised",
    "trace",
]
