"""Tables and figures of papers, made again."""

from unskew.reproduce.published import (
    PAPERS,
    READINGS,
    Cell,
    Paper,
    Published,
    PublishedTable,
    Reading,
    cells,
    experiment,
    find_table,
    papers,
    settings,
    tables,
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
