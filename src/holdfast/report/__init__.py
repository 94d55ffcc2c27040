"""Reports: rows in, one offline HTML page out."""

from holdfast.report.attacks import attack_page
from holdfast.report.hits import hits_page
from holdfast.report.page import thumbnail
from holdfast.report.run import REPORT, write_report

__all__ = ["REPORT", "attack_page", "hits_page", "thumbnail", "write_report"]
