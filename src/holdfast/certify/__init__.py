"""What cannot happen: certificates for rankings."""

from holdfast.certify.largest import largest_eps
from holdfast.certify.ranking import (
    BothAttack,
    CandidateAttack,
    FewCandidatesAttack,
    LastLayer,
    QueryAttack,
    nearest,
)
from holdfast.certify.values import RankBounds, Verdict

__all__ = [
    "BothAttack",
    "CandidateAttack",
    "FewCandidatesAttack",
    "LastLayer",
    "QueryAttack",
    "RankBounds",
    "Verdict",
    "largest_eps",
    "nearest",
]
