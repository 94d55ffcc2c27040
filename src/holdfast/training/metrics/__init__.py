"""Mahalanobis metrics learned from labelled feature vectors."""

from holdfast.training.metrics.arml import ARML
from holdfast.training.metrics.learners import METHODS, learn

__all__ = ["ARML", "METHODS", "learn"]
