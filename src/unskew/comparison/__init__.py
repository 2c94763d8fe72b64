"""Methods compared over seeds: the runs of `unskew compare` (`study`), the numbers of compare.json
(`statistics`), and `unskew.compare` for Python (`compare`)."""
