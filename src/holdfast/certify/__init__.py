"""What cannot happen: certificates for rankings."""

from holdfast.certify.ranking import CandidateAttack, QueryAttack, nearest
from holdfast.certify.values import RankBounds, Verdict

__all__ = ["CandidateAttack", "QueryAttack", "RankBounds", "Verdict", "nearest"]
