"""Clusters of clients with like label shares, whose size may be limited."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def cluster_shares(
    shares: NDArray[np.float64], clusters: int, capacity: float, seed: int
) -> NDArray[np.int64]:
    """Return the cluster of each client, numbered from 0 without gaps, by k-means of the clients' label
    shares [clients, C].

    K, the number of clusters, is `clusters`, or the number of different rows if that is smaller. With a
    `capacity` above 0 a cluster takes at most capacity * clients / K of the clients (rounded up), and clients
    go where the sum of their squared distances to the centres is smallest.
    """
    K = min(clusters, len(np.unique(shares, axis=0)))
    # Here and not above: the two take as long to import as PyTorch, and no other method needs them.
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    means = KMeans(K, n_init=10, random_state=seed).fit(shares)
    cluster_of = means.labels_
    if capacity:
        most = math.ceil(capacity * len(shares) / K)
        costs = np.repeat(means.transform(shares) ** 2, most, axis=1)  # a column for each place in a cluster
        cluster_of = linear_sum_assignment(costs)[1] // most
    numbered: NDArray[np.int64] = np.unique(cluster_of, return_inverse=True)[1]
    return numbered
