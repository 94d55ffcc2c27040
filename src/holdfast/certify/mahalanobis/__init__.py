"""Certified nearest neighbours of feature vectors under a Mahalanobis metric."""

from holdfast.certify.mahalanobis.bound import Neighbours, knn_radii, knn_radius
from holdfast.certify.mahalanobis.exact import Exact, exact_radius, flips

__all__ = ["Exact", "Neighbours", "exact_radius", "flips", "knn_radii", "knn_radius"]
