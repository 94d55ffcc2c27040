"""What cannot happen: certificates for rankings."""

from holdfast.proofs.altered_candidates import AlteredBoth, AlteredCandidates, FewAlteredCandidates
from holdfast.proofs.altered_query import AlteredQuery, LastLayer, nearest, query_ranks
from holdfast.proofs.crown import Backward
from holdfast.proofs.largest import largest_eps
from holdfast.proofs.values import Alteration, RankBounds

__all__ = [
    "Alteration",
    "AlteredBoth",
    "AlteredCandidates",
    "AlteredQuery",
    "Backward",
    "FewAlteredCandidates",
    "LastLayer",
    "RankBounds",
    "largest_eps",
    "nearest",
    "query_ranks",
]
