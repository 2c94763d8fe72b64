"""Tables and figures of papers, made again."""

from unskew.reproduce.paper_files import PAPERS, find_table, papers, tables
from unskew.reproduce.published import (
    READINGS,
    Cell,
    Paper,
    Published,
    PublishedTable,
    Reading,
    cells,
    experiment,
    settings,
)

__all__ = [
    "PAPERS",
    "READINGS",
    "Cell",
    "Paper",
    "Published",
    "PublishedTable",
    "Reading",
    "cells",
    "experiment",
    "find_table",
    "papers",
    "settings",
    "tables",
]
