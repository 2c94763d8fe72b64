"""Rules with shares from Dirichlet distributions: of every class over the clients, or of every client over
the classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from unskew.data.partition import Floats, Ints
from unskew.data.partitions.known_draws import FAILED_DRAWS, PublishedSearch
from unskew.data.partitions.pool import (
    Division,
    PartitionSeed,
    SamplePool,
    deal,
    enough,
    even,
    largest_remainder,
    pfllib_least,
)
from unskew.errors import UserError

BLOCK = 1 << 16
"""Numbers per block of tries, so that an array of 0.5 MB fits the processor's cache. It changes no result."""
PILOT = 1000
"""Tries after which a hopeless recipe is recognised."""
LARGEST_BETA = 1e9
"""The division is even long before this. Far beyond it, Gamma draws of clients differ in no digit."""


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided among the clients by shares drawn from Dirichlet(β·1).

    cap: a client that holds n/N samples or more gets none of the classes that follow (in label order), and
        its share goes to the others. All published codes do this and no paper says so; false is the plain
        definition.
    min_size: draw everything again until every client has at least this number of samples. auto: 10, and in
        the variant pfllib the least number of that code, 40 or half an equal share.
    rounding: largest (remainder), or floor (of the cumulated shares; the last client then gets stray single
        samples of almost every class). auto: largest, and floor in the published variants.
    variant: clean, or the draws of a published code, bit for bit: fedvls (FedVLS and FedED on CIFAR and
        TinyImageNet, FedDecorr), fedntd (FedNTD and FedLMD "lda") and niid-bench (NIID-Bench and MOON
        "noniid-labeldir"), which draw alike, and pfllib (PFLlib "dir"; with min_size=256 FedVLS on MNIST),
        which leaves the samples of a client in label order.
    max_tries, on_failure: after max_tries draws, repair the closest one (move samples from the largest
        clients, keeping their class mix) or raise an error. If the first 1,000 draws show that min_size
        cannot be met, no more are made.
    """

    beta: float
    cap: bool = True
    min_size: int | Literal["auto"] = "auto"
    rounding: Literal["auto", "largest", "floor"] = "auto"
    variant: Literal["clean", "fedvls", "fedntd", "niid-bench", "pfllib"] = "clean"
    max_tries: int = 100_000
    on_failure: Literal["repair", "raise"] = "repair"

    def __post_init__(self) -> None:
        if not 0 < self.beta <= LARGEST_BETA:
            raise UserError(
                f"dirichlet beta is {self.beta} but should be above 0 and at most {LARGEST_BETA:g}."
            )
        if self.min_size == "auto":
            if self.variant != "pfllib":
                object.__setattr__(self, "min_size", 10)
        elif self.min_size < 0:
            raise UserError(f"dirichlet min_size is {self.min_size} but should be 0 or more.")
        if self.max_tries < 1:
            raise UserError(f"dirichlet max_tries is {self.max_tries} but should be at least 1.")
        if self.rounding == "auto":
            object.__setattr__(self, "rounding", "largest" if self.variant == "clean" else "floor")
        if self.variant != "clean" and self.rounding != "floor":
            raise UserError(f"dirichlet variant={self.variant} rounds by floor: leave rounding out.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        least = pfllib_least(pool, clients) if self.min_size == "auto" else self.min_size
        enough(pool, clients, least)
        if self.variant == "clean":
            draw = _clean(self, pool, clients, seed)
            counts, tries, notes = _search(self, least, draw, max(1, BLOCK // (pool.classes * clients)))
            return Division(deal(pool, counts.T, seed.stream("deal")), notes, tries)
        published = _Published(self, pool.by_class, clients, seed.legacy())
        sizes = tuple(pool.class_sizes.tolist())
        this = PublishedSearch(self.beta, self.cap, least, clients, sizes, seed.legacy_seed())
        known, skipped = FAILED_DRAWS.get(this), 0
        if known and known.draws < self.max_tries:
            known.skip(published.rng)
            skipped = known.draws
        counts, tries, notes = _search(self, least, published.draw, 1)
        return Division(published.deal(counts), (*published.notes(), *notes), skipped + tries)


Draw = Callable[[int], Floats]
"""A function that makes this number of draws: the samples per class and client, [draws, classes, clients]."""


def _search(rule: Dirichlet, min_size: int, draw: Draw, block: int) -> tuple[Ints, int, tuple[str, ...]]:
    """Draw until every client has min_size samples, or repair the closest draw. Return the counts [classes,
    clients], the number of draws, and notes on a repair."""
    tries, size, short_clients = 0, 1, 0
    closest, least = np.zeros(0), math.inf
    while tries < rule.max_tries:
        stop = min(PILOT, rule.max_tries) if tries < PILOT else rule.max_tries
        counts = draw(min(size, stop - tries))
        lacking = np.maximum(min_size - counts.sum(axis=1), 0)
        lack = lacking.sum(axis=1)
        first = int(lack.argmin())
        if lack[first] == 0:
            return counts[first].astype(np.int64), tries + first + 1, ()
        if lack[first] < least:
            closest, least = counts[first].copy(), lack[first]
        tries += len(counts)
        size = min(2 * size, block)
        short_clients += int((lacking > 0).sum())
        # The number of clients that fall short is nearly Poisson, so a draw succeeds with probability about
        # exp(-mean): beyond this mean, all max_tries together have a chance of less than 1 in 20,000.
        if tries == PILOT and short_clients / PILOT > math.log(rule.max_tries) + 10:
            break
    short = int((closest.sum(axis=0) < min_size).sum())
    outcome = f"of {tries:,} draws gave every client {min_size} samples, and the closest left {short} short"
    if rule.on_failure == "raise":
        raise UserError(
            f"none {outcome}: lower min_size, raise beta, ask for fewer clients, or set on_failure=repair."
        )
    note = (
        f"None {outcome}: {least:,.0f} samples were moved to them from the largest clients, which kept their "
        "class mix."
    )
    return _repair(closest.astype(np.int64), min_size), tries, (note,)


def _repair(counts: Ints, min_size: int) -> Ints:
    """Fill every client up to min_size from the client that is then the largest, keeping its class mix."""
    counts = counts.copy()
    sizes = counts.sum(axis=0)
    for short in np.flatnonzero(sizes < min_size):
        while sizes[short] < min_size:
            giver = int(sizes.argmax())
            amount = int(min(min_size - sizes[short], sizes[giver] - min_size))
            mix = counts[:, giver] / sizes[giver]
            moved = largest_remainder(amount * mix[None], amount)[0].astype(np.int64)
            counts[:, giver] -= moved
            counts[:, short] += moved
            sizes[giver] -= amount
            sizes[short] += amount
    return counts


def _weights(exponential: Floats, gamma: Floats, beta: float, is_open: npt.NDArray[np.bool_]) -> Floats:
    """Return rows of Dirichlet(β·1) over the open entries, not normalised, with 0 elsewhere. A Gamma(β)
    variable is Gamma(β+1)·exp(-Exponential/β); taken relative to the row's largest, no β makes all of them
    underflow."""
    powers = np.where(is_open, exponential, np.inf)
    np.subtract(powers.min(axis=-1, keepdims=True), powers, out=powers)
    with np.errstate(over="ignore"):  # a β near the smallest float gives minus infinity, which is right
        powers /= beta
    np.maximum(powers, -700.0, out=powers)  # exp is slow where it underflows
    weights: Floats = np.exp(powers, out=powers)
    weights *= gamma
    weights *= is_open
    return weights


def _clean(rule: Dirichlet, pool: SamplePool, clients: int, seed: PartitionSeed) -> Draw:
    """Make the function that draws a partition as `variant=clean` asks."""
    exponential, gamma = seed.stream("exponential"), seed.stream("gamma")
    shape, full = (pool.classes, clients), len(pool) / clients
    round_off = largest_remainder if rule.rounding == "largest" else _floor

    def draw(tries: int) -> Floats:
        e = exponential.standard_exponential((tries, *shape))
        g = gamma.standard_gamma(1 + rule.beta, (tries, *shape))
        counts = np.zeros((tries, *shape))
        held = np.zeros((tries, clients))
        is_open = np.ones((tries, clients), dtype=np.bool_)
        for c, size in enumerate(pool.class_sizes.tolist()):
            if size == 0:
                continue
            if rule.cap:
                # While a sample is left, some client holds less than n/N: no row is ever closed to all.
                is_open = held < full
            shares = _weights(e[:, c], g[:, c], rule.beta, is_open)
            shares *= size / shares.sum(axis=1, keepdims=True)
            counts[:, c] = round_off(shares, size)
            held += counts[:, c]
        return counts

    return draw


def _floor(shares: Floats, total: int) -> Floats:
    """Round each row of `shares` to whole numbers by rounding down its cumulated shares."""
    cuts = np.minimum(np.floor(np.cumsum(shares, axis=1)[:, :-1]), total)
    return np.diff(cuts, axis=1, prepend=0, append=total)


@dataclass
class _Published:
    """Draws of a published variant, one at a time. They use the generator as the published codes do: for each
    class one shuffle of its samples and one Dirichlet draw."""

    rule: Dirichlet
    by_class: tuple[Ints, ...]
    clients: int
    rng: np.random.RandomState
    orders: list[Ints] = field(default_factory=list)
    """The samples of each class in the order of the latest draw."""
    redrawn: int = 0

    def __post_init__(self) -> None:
        self.alpha = np.full(self.clients, self.rule.beta)

    def draw(self, _: int) -> Floats:
        full = sum(map(len, self.by_class)) / self.clients
        counts = np.zeros((1, len(self.by_class), self.clients))
        held, cuts = np.zeros(self.clients), np.zeros(self.clients + 1)
        self.orders = [mine.copy() for mine in self.by_class]
        is_open: npt.NDArray[np.bool_] | bool = True
        for c, mine in enumerate(self.orders):
            self.rng.shuffle(mine)
            if self.rule.cap:
                is_open = held < full
            np.cumsum(self._shares(is_open), out=cuts[1:])
            cuts *= len(mine)
            np.floor(cuts, out=cuts)
            cuts[-1] = len(mine)
            np.subtract(cuts[1:], cuts[:-1], out=counts[0, c])
            held += counts[0, c]
        return counts

    def _shares(self, is_open: npt.NDArray[np.bool_] | bool) -> Floats:
        """Draw the clients' shares of a class. At small β NumPy's older Dirichlet underflows, to NaN or to no
        mass on any open client. The published codes continue with garbage then; here it is drawn again."""
        for _ in range(10_000):
            shares = self.rng.dirichlet(self.alpha)
            shares *= is_open
            total = shares.sum()
            if total > 0:
                shares /= total
                return shares
            self.redrawn += 1
        raise UserError(f"the published code cannot draw with beta {self.rule.beta}: use variant=clean.")

    def deal(self, counts: Ints) -> tuple[Ints, ...]:
        cut = [np.split(mine, np.cumsum(row)) for mine, row in zip(self.orders, counts, strict=True)]
        hands = tuple(np.concatenate([parts[k] for parts in cut]) for k in range(self.clients))
        if self.rule.variant != "pfllib":
            for hand in hands:
                self.rng.shuffle(hand)
        return hands

    def notes(self) -> tuple[str, ...]:
        if not self.redrawn:
            return ()
        return (
            f"{self.redrawn:,} shares underflowed, where the published code breaks, and were drawn again.",
        )


@dataclass(frozen=True)
class ClientDirichlet:
    """Each client draws its own class shares from Dirichlet(α·1) and then, without replacement, as many
    samples as every other client; a class that is used up drops out of the shares of the clients that follow.
    By Hsu et al., "Measuring the effects of non-identical data distribution" (2019). The "Dirichlet" of the
    label-skew papers is `Dirichlet`."""

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= LARGEST_BETA:
            raise UserError(
                f"client-dirichlet alpha is {self.alpha} but should be above 0 and at most {LARGEST_BETA:g}."
            )

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        shape = (clients, pool.classes)
        e = seed.stream("exponential").standard_exponential(shape)
        g = seed.stream("gamma").standard_gamma(1 + self.alpha, shape)
        rng, left = seed.stream("multinomial"), pool.class_sizes.copy()
        counts = np.zeros(shape, dtype=np.int64)
        for k, need in enumerate(even(len(pool), clients).tolist()):
            while need:  # samples that a class no longer has are drawn again from the classes that are left
                weights = _weights(e[k], g[k], self.alpha, left > 0)
                taken = np.minimum(rng.multinomial(need, weights / weights.sum()), left)
                counts[k] += taken
                left -= taken
                need -= int(taken.sum())
        return Division(deal(pool, counts, seed.stream("deal")))
