"""Hyperparameter search: the search space, the choice of trials, and a search that runs in a folder."""
