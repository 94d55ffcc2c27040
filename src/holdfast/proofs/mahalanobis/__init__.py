"""Certified nearest neighbours of feature vectors under a Mahalanobis metric."""

from holdfast.bounds.neighbours import Neighbours
from holdfast.bounds.projection import Limits
from holdfast.proofs.mahalanobis.bound import knn_radii, knn_radius
from holdfast.proofs.mahalanobis.exact import Exact, exact_radius, flips

__all__ = ["Exact", "Limits", "Neighbours", "exact_radius", "flips", "knn_radii", "knn_radius"]
