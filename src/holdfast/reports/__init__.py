"""Reports: rows in, one offline HTML page out."""

from holdfast.reports.attacks import attack_page
from holdfast.reports.hits import hits_page
from holdfast.reports.page import thumbnail
from holdfast.reports.run import REPORT, write_report

__all__ = ["REPORT", "attack_page", "hits_page", "thumbnail", "write_report"]
