"""Certificates by randomized smoothing: for any embedder, in ℓ2, with a stated probability of failure."""

from holdfast.proofs.smoothing.pairs import Answers, Form, Pairs, candidate_pairs, class_pairs
from holdfast.proofs.smoothing.settings import Rule, Smoothing, check_samples, parse_smoothing

__all__ = [
    "Answers",
    "Form",
    "Pairs",
    "Rule",
    "Smoothing",
    "candidate_pairs",
    "check_samples",
    "class_pairs",
    "parse_smoothing",
]
