"""Certificates by randomized smoothing: for any embedder, in ℓ2, with a stated probability of failure."""

from holdfast.certify.smoothing.pairs import Answers, Form, Pairs, candidate_pairs, class_pairs

__all__ = ["Answers", "Form", "Pairs", "candidate_pairs", "class_pairs"]
