"""k-means of clients by their label shares, with clusters whose size may be bounded."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def cluster_shares(
    shares: NDArray[np.float64], clusters: int, capacity: float, seed: int
) -> NDArray[np.int64]:
    K = min(clusters, len(np.unique(shares, axis=0)))
    # Here and not above: the two take as long to import as PyTorch, and no other method needs them.
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    means = KMeans(K, n_init=10, random_state=seed).fit(shares)
    kinds = means.labels_
    if capacity:
        most = math.ceil(capacity * len(shares) / K)
        places = np.repeat(means.transform(shares) ** 2, most, axis=1)
        kinds = linear_sum_assignment(places)[1] // most
    numbered: NDArray[np.int64] = np.unique(kinds, return_inverse=True)[1]
    return numbered
