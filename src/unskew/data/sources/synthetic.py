"""Generated federations of logistic models: FedProx's Synthetic(α, β), and LEAF's different generator.

T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020
(https://github.com/litian96/FedProx). S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018
(https://github.com/TalwalkarLab/leaf)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.drawn import DrawnSplit
from unskew.errors import UserError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ClientData = tuple[Floats, Ints]
"""One client's samples [n, features] and labels [n], in random order."""

FEATURES, CLASSES = 60, 10
MIXED_CLUSTERS = 5  # clients k, k+5, k+10, … share a labelling model; FedLC does not give the number
MIXED_ALPHA = 0.1  # of the clients with Dirichlet proportions, as in FedLC's other experiments
BATCH = 8192
TESTED = 1000
"""How many clients give the test split and the label counts, if clients are drawn when they are needed."""


def synthetic(
    *,
    alpha: float = 0.5,
    beta: float = 0.5,
    clients: int = 30,
    seed: int = 0,
    iid: bool = False,
    mixed: bool = False,
    cap: int = 0,
    drawn: bool = False,
) -> Dataset:
    """Generate Synthetic(alpha, beta): 60 features, 10 classes, `owners` set to the client, and 90 % of each
    client's samples for training.

    Client k has n_k = floor(LogNormal(4, 2)) + 50 samples, and draws
        u_k ~ N(0, alpha), W_k ~ N(u_k, 1) [60, 10], b_k ~ N(u_k, 1) [10],
        B_k ~ N(0, beta), v_k ~ N(B_k, 1) [60],
        x ~ N(v_k, diag(j^-1.2)), y = argmax(x W_k + b_k).
    alpha and beta are standard deviations, as in the authors' code. u_k adds one amount to the logits of all
    classes, so the labels do not depend on alpha; clients differ by v_k, W_k and b_k even at (0, 0).

    iid: one W, b ~ N(0, 1) for all clients, and v_k = 0.
    mixed: FedLC's "mixed manner", as read here: clients share five models W_g = W + alpha · N(0, 1), and each
        sample has its own v ~ N(B, 1), B ~ N(0, beta). Clients of even number hold two classes in equal
        parts, the others proportions ~ Dirichlet(0.1).
    cap: at most this many samples per client; 0 for no limit (the sizes have a long tail).
    drawn: the same clients, but each is drawn when it is needed, so that there may be a million of them. The
        test split has the held-out samples of the first 1,000 clients, so with no more clients it is the
        same.
    """
    if not (alpha >= 0 and beta >= 0 and clients >= 1 and seed >= 0):
        raise UserError("synthetic needs alpha, beta and seed of at least 0 and at least 1 client.")
    if cap and cap < 10:
        raise UserError(f"synthetic's cap is {cap}: give 0 for none, or at least 10.")
    if iid and mixed:
        raise UserError("synthetic is either iid or mixed: give one of them.")
    sizes = np.floor(stream(seed, "sizes").lognormal(4, 2, clients)).astype(np.int64) + 50
    if cap:
        sizes = np.minimum(sizes, cap)
    variant = ",iid=true" * iid + ",mixed=true" * mixed
    if drawn:
        if mixed:
            raise UserError("clients of mixed synthetic share what they draw from: leave out mixed or drawn.")
        size = f",clients={clients},seed={seed}" + f",cap={cap}" * bool(cap)
        recipe = f"synthetic:{alpha:g},{beta:g}{variant}{size},drawn=true"
        return drawn_federation(recipe, partial(one_client, seed, alpha, beta, iid), sizes)
    if mixed:
        parts = mixed_parts(alpha, beta, sizes, seed)
    else:
        parts = [one_client(seed, alpha, beta, iid, int(n), k) for k, n in enumerate(sizes)]
    return federated(f"synthetic:{alpha:g},{beta:g}{variant}", parts, CLASSES)


def stream(seed: int, use: str, number: int = 0) -> np.random.Generator:
    """Return a generator for this use and client, independent of all others, so that the size of one client
    changes no other client."""
    return np.random.default_rng((seed, ("sizes", "model", "client", "shares", "pool").index(use), number))


def model(rng: np.random.Generator, mean: float) -> tuple[Floats, Floats]:
    return rng.normal(mean, 1, (FEATURES, CLASSES)), rng.normal(mean, 1, CLASSES)


def scales(features: int) -> Floats:
    """Return the standard deviations of the features, whose variances are j^-1.2, j = 1, 2, …"""
    return np.arange(1.0, features + 1) ** -0.6


def one_client(seed: int, alpha: float, beta: float, iid: bool, n: int, k: int) -> ClientData:
    """Draw client k's samples, which do not depend on other clients."""
    common = model(stream(seed, "model"), 0.0) if iid else None
    return client_part(stream(seed, "client", k), alpha, beta, n, common)


def client_part(
    rng: np.random.Generator, alpha: float, beta: float, n: int, common: tuple[Floats, Floats] | None
) -> ClientData:
    if common is None:
        u, B = rng.normal(0, alpha), rng.normal(0, beta)
        v = rng.normal(B, 1, FEATURES)
        W, b = model(rng, u)
    else:
        v, (W, b) = np.zeros(FEATURES), common
    x = v + rng.standard_normal((n, FEATURES)) * scales(FEATURES)
    return x, (x @ W + b).argmax(axis=1)


def mixed_parts(alpha: float, beta: float, sizes: Ints, seed: int) -> list[ClientData]:
    """Draw the clients of FedLC's mixed manner; see `synthetic`."""
    wanted = [label_counts(stream(seed, "shares", k), int(n), k % 2 == 0) for k, n in enumerate(sizes)]
    W, b = model(stream(seed, "model"), 0.0)
    parts: dict[int, ClientData] = {}
    for g in range(min(MIXED_CLUSTERS, len(sizes))):
        rng = stream(seed, "pool", g)
        dW, db = model(rng, 0.0)
        members = range(g, len(sizes), MIXED_CLUSTERS)
        demand = sum((wanted[k] for k in members), np.zeros(CLASSES, np.int64))
        pool = class_pools(rng, W + alpha * dW, b + alpha * db, beta, demand)
        used = np.zeros(CLASSES, np.int64)
        for k in members:
            x = np.concatenate([pool[c][used[c] : used[c] + wanted[k][c]] for c in range(CLASSES)])
            order = stream(seed, "client", k).permutation(len(x))
            parts[k] = x[order], np.repeat(np.arange(CLASSES), wanted[k])[order]
            used += wanted[k]
    return [parts[k] for k in range(len(sizes))]


def label_counts(rng: np.random.Generator, n: int, two: bool) -> Ints:
    """Draw how many of n samples each class gets: two classes in equal parts, or Dirichlet shares, rounded by
    largest remainder."""
    if two:
        shares = np.zeros(CLASSES)
        shares[rng.choice(CLASSES, 2, replace=False)] = 0.5
    else:
        shares = rng.dirichlet(np.full(CLASSES, MIXED_ALPHA))
    counts = np.floor(shares * n).astype(np.int64)
    counts[np.argsort(counts - shares * n, kind="stable")[: n - counts.sum()]] += 1
    return counts


def class_pools(rng: np.random.Generator, W: Floats, b: Floats, beta: float, demand: Ints) -> list[Floats]:
    """Draw samples until there are at least demand[c] of each class c, by the labels of the model W, b."""
    found: list[list[Floats]] = [[] for _ in range(CLASSES)]
    lacking = demand.copy()
    for _ in range(10_000):
        if (lacking <= 0).all():
            return [np.concatenate(xs) if xs else np.empty((0, FEATURES)) for xs in found]
        v = rng.normal(rng.normal(0, beta, (BATCH, 1)), 1, (BATCH, FEATURES))
        x = v + rng.standard_normal((BATCH, FEATURES)) * scales(FEATURES)
        y = (x @ W + b).argmax(axis=1)
        for c in np.flatnonzero(lacking > 0):
            found[c].append(x[y == c])
            lacking[c] -= len(found[c][-1])
    raise UserError("this seed's model hardly ever gives one of the classes: take another seed.")


def leaf_synthetic(
    *,
    clients: int = 1000,
    classes: int = 5,
    features: int = 60,
    clusters: int = 1,
    seed: int = 931231,
) -> Dataset:
    """Generate LEAF's `synthetic`, draw for draw, with 90 % of each client's samples for training, and with
    `owners` set to the client. The defaults of clients, classes and features are those of LEAF's README; the
    defaults of clusters and seed are those of its code.

    Clients share Q ~ N(0, 1) [features + 1, classes, clusters]; clusters have centres μ_g ~ N(N(0, 1), 1).
    Client k has n_k = min(floor(LogNormal(3, 2)) + 5, 1000) samples, and draws
        a cluster g, v_k ~ N(N(0, 1), 1), x ~ N(v_k, diag(j^-1.2)), m_k ~ N(μ_g, 0.1),
        y = argmax over classes of softmax((1, x) Q m_k + N(0, 0.1)).
    LEAF's softmax runs over the client's samples, not over the classes; labels depend on it, so it is kept.
    """
    if min(clients, features, clusters) < 1 or classes < 2 or not 0 <= seed < 2**32:
        raise UserError(
            "leaf_synthetic needs at least 1 client, feature and cluster, 2 classes and a seed of 0..2^32-1."
        )
    sizes = np.random.RandomState(seed).lognormal(3, 2, clients).astype(np.int64)
    sizes = np.minimum(sizes + 5, 1000)
    rng = np.random.RandomState(seed)  # LEAF seeds twice, so its model begins with the draws of the sizes
    Q = rng.normal(0, 1, (features + 1, classes, clusters))
    centres = [rng.normal(rng.normal(0, 1), 1, clusters) for _ in range(clusters)]
    parts = []
    for n in sizes:
        centre = centres[rng.choice(clusters, p=np.full(clusters, 1 / clusters))]
        v = rng.normal(rng.normal(0, 1), 1, features)
        x = v + rng.standard_normal((n, features)) * scales(features)
        W = Q @ rng.normal(centre, 0.1)
        logits = W[0] + x @ W[1:] + rng.normal(0, 0.1, (n, classes))
        parts.append((x, (logits - np.logaddexp.reduce(logits, axis=0)).argmax(axis=1)))
    return federated("leaf_synthetic", parts, classes)


def drawn_federation(recipe: str, draw: Callable[[int, int], ClientData], sizes: Ints) -> Dataset:
    """Make a dataset of clients of these sizes, which are drawn when they are needed: draw(size, k) gives the
    samples of client k."""
    cuts = np.floor(0.9 * sizes).astype(np.int64)
    first = [draw(int(n), k) for k, n in enumerate(sizes[:TESTED])]
    counts = np.stack(
        [np.bincount(y[:cut], minlength=CLASSES) for (_, y), cut in zip(first, cuts, strict=False)]
    )
    test = joined([(x[cut:], y[cut:]) for (x, y), cut in zip(first, cuts, strict=False)])
    train = DrawnSplit(recipe, cuts, partial(train_part, draw, sizes, cuts), counts)
    return Dataset(recipe, train, test, tuple(str(c) for c in range(CLASSES)))


def train_part(
    draw: Callable[[int, int], ClientData], sizes: Ints, cuts: Ints, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the samples of client k, and return the inputs and labels that it trains on."""
    x, y = draw(int(sizes[k]), k)
    split = joined([(x[: cuts[k]], y[: cuts[k]])])
    return split.inputs, split.labels


def federated(name: str, parts: list[ClientData], classes: int) -> Dataset:
    """Cut each client's samples, which are in random order, 90/10, and join them as a dataset whose `owners`
    are the clients."""
    cuts = [math.floor(0.9 * len(y)) for _, y in parts]
    train = [(x[:cut], y[:cut]) for (x, y), cut in zip(parts, cuts, strict=True)]
    test = [(x[cut:], y[cut:]) for (x, y), cut in zip(parts, cuts, strict=True)]
    return Dataset(name, joined(train), joined(test), tuple(str(c) for c in range(classes)))


def joined(parts: list[ClientData]) -> Split:
    """Join the clients' samples as a split, with the clients' numbers as owners."""
    owners = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    return Split(
        torch.from_numpy(np.concatenate([x for x, _ in parts]).astype(np.float32)),
        torch.from_numpy(np.concatenate([y for _, y in parts]).astype(np.int64)),
        torch.from_numpy(owners.astype(np.int64)),
    )
