"""Evaluation: attacks and certificates over queries, written down as rows."""

from holdfast.evaluate.pictures import encode, load_pictures, sheet, worst_queries
from holdfast.evaluate.run import KS, Evaluation, evaluate, read_evaluation
from holdfast.rows import ROWS, Rows, RowWriter, config_hash, read_header, read_rows

__all__ = [
    "KS",
    "ROWS",
    "Evaluation",
    "RowWriter",
    "Rows",
    "config_hash",
    "encode",
    "evaluate",
    "load_pictures",
    "read_evaluation",
    "read_header",
    "read_rows",
    "sheet",
    "worst_queries",
]
