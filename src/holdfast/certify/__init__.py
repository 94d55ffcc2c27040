"""What cannot happen: certificates for rankings."""

from holdfast.certify.candidates import BothAttack, CandidateAttack, FewCandidatesAttack
from holdfast.certify.crown import Backward
from holdfast.certify.largest import largest_eps
from holdfast.certify.ranking import LastLayer, QueryAttack, nearest
from holdfast.certify.values import RankBounds

__all__ = [
    "Backward",
    "BothAttack",
    "CandidateAttack",
    "FewCandidatesAttack",
    "LastLayer",
    "QueryAttack",
    "RankBounds",
    "largest_eps",
    "nearest",
]
