"""What cannot happen: certificates for rankings."""

from holdfast.certify.candidates import BothAttack, CandidateAttack, FewCandidatesAttack
from holdfast.certify.crown import Backward
from holdfast.certify.largest import largest_eps
from holdfast.certify.pairwise import Method
from holdfast.certify.ranking import LastLayer, QueryAttack, nearest
from holdfast.certify.values import RankBounds, Verdict

__all__ = [
    "Backward",
    "BothAttack",
    "CandidateAttack",
    "FewCandidatesAttack",
    "LastLayer",
    "Method",
    "QueryAttack",
    "RankBounds",
    "Verdict",
    "largest_eps",
    "nearest",
]
