"""Rules by which a smoothed search lists its hits; each certifies what it lists."""

from __future__ import annotations

from holdfast.gallery.rules.base import Question
from holdfast.gallery.rules.mean import MeanQuestion
from holdfast.gallery.rules.votes import VoteQuestion
from holdfast.proofs.smoothing.settings import Rule

RULES: dict[Rule, type[MeanQuestion | VoteQuestion]] = {"mean": MeanQuestion, "votes": VoteQuestion}

__all__ = ["RULES", "MeanQuestion", "Question", "VoteQuestion"]
