"""Clustering without parameters, by first neighbours.

Sarfraz, Sharma, Stiefelhagen. Efficient Parameter-free Clustering Using First Neighbor Relations. CVPR 2019.

Every point is linked to its nearest one by cosine, and points that are linked, directly or through others,
are a cluster. The clusters' means are linked in the same way, until one more step would leave a single
cluster. Written from this idea; the authors' code, whose licence is academic, was not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
ClusterLabels = NDArray[np.int64]


def finch(points: Points) -> ClusterLabels:
    """Return the cluster of every point [n, d], numbered from 0: the coarsest partition with more than one
    cluster, or the first partition if that has a single one. Two points or more make at most n/2 clusters."""
    labels = _link(points)
    while labels.max() > 0:
        merged = _link(cluster_means(points, labels))
        if merged.max() == 0:
            break
        labels = merged[labels]
    return labels


def cluster_means(points: Points, labels: ClusterLabels) -> Points:
    """Return the mean of the points of every cluster, [clusters, d]."""
    return np.stack([points[labels == label].mean(axis=0) for label in range(labels.max() + 1)])


def _link(points: Points) -> ClusterLabels:
    """Link every point to its nearest one by cosine, and return the connected component of every point."""
    # Here, because every command would otherwise wait for SciPy, and one method needs it.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(points)
    if n == 1:
        return np.zeros(1, np.int64)
    norm = np.linalg.norm(points, axis=1, keepdims=True)
    unit = points / np.where(norm > 0, norm, 1.0)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    links = coo_matrix((np.ones(n), (np.arange(n), cosine.argmax(axis=1))), shape=(n, n))
    _, labels = connected_components(links, directed=False)
    return np.asarray(labels, np.int64)
