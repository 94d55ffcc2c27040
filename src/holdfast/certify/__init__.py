"""What cannot happen: certificates for rankings."""

from holdfast.certify.altered_candidates import AlteredBoth, AlteredCandidates, FewAlteredCandidates
from holdfast.certify.altered_query import AlteredQuery, LastLayer, nearest, query_ranks
from holdfast.certify.crown import Backward
from holdfast.certify.largest import largest_eps
from holdfast.certify.values import Alteration, RankBounds

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
