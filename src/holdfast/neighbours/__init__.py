"""Nearest neighbours of feature vectors under a Mahalanobis metric: learned, certified and attacked.

found = load_features(Path("features.npz"))
metric = learn(found.train, found.train_labels)                      # ARML
done = certify_metric(metric, found, "certification", k=1)           # two radii for every test point, as rows

The bounds themselves are certificates of their own, in `holdfast.certify.mahalanobis`.
"""

from holdfast.neighbours.arml import ARML
from holdfast.neighbours.certification import (
    CertifiedNeighbours,
    RobustError,
    certify_learned,
    certify_metric,
    contradictions,
    read_neighbours,
    robust_error,
)
from holdfast.neighbours.features import Features, export_features, image_features, load_features
from holdfast.neighbours.learners import METHODS, learn, learn_from
from holdfast.neighbours.moves import Moved, smallest_move, smallest_moves
from holdfast.neighbours.networks import certify_perceptron

__all__ = [
    "ARML",
    "METHODS",
    "CertifiedNeighbours",
    "Features",
    "Moved",
    "RobustError",
    "certify_learned",
    "certify_metric",
    "certify_perceptron",
    "contradictions",
    "export_features",
    "image_features",
    "learn",
    "learn_from",
    "load_features",
    "read_neighbours",
    "robust_error",
    "smallest_move",
    "smallest_moves",
]
