"""Figures for print: colour-blind safe, readable in grey, classes by name.

Each is a function from the runs that `unskew.report.read` gives to a Matplotlib figure; `save` writes it.
"""

from unskew.report.figures.curves import counting, curves, experts, extremes
from unskew.report.figures.forest import forest
from unskew.report.figures.heatmap import heatmap
from unskew.report.figures.matrices import confusion, features, predictions
from unskew.report.figures.partition import draw_partition, partition
from unskew.report.figures.search import search
from unskew.report.figures.sensitivity import sensitivity
from unskew.report.figures.style import COLUMN, FORMATS, PAGE, check_format, save
from unskew.report.figures.tsne import Features, tsne
from unskew.report.figures.updates import updates

__all__ = [
    "COLUMN",
    "FORMATS",
    "PAGE",
    "Features",
    "check_format",
    "confusion",
    "counting",
    "curves",
    "draw_partition",
    "experts",
    "extremes",
    "features",
    "forest",
    "heatmap",
    "partition",
    "predictions",
    "save",
    "search",
    "sensitivity",
    "tsne",
    "updates",
]
