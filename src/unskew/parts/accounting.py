"""The privacy that noisy means of clients' updates cost, by the accountants of dp-accounting."""

from __future__ import annotations

import math
from typing import Any

from unskew.errors import UserError


def accountants() -> Any:
    """The package dp-accounting."""
    try:
        import dp_accounting
    except ImportError:
        raise UserError(
            "dp needs dp-accounting to say what ε is: install it with pip install 'unskew[dp]'."
        ) from None
    return dp_accounting


def epsilon(
    *, noise_multiplier: float, rounds: int, cohort: int, clients: int, delta: float, amplified: bool
) -> float:
    """ε at this δ where any one client's data are replaced by others: of so many rounds, each of which adds
    Gaussian noise to the sum of a cohort's updates, of deviation noise_multiplier times their largest norm.
    `amplified`: cohorts are drawn without replacement, each independently of the rounds before, and a client
    keeps nothing from round to round."""
    package = accountants()
    # A client that is replaced changes the sum by up to twice the largest norm.
    noise = noise_multiplier / 2
    # Rounds of Gaussian noise are together one of less noise; this is exact.
    everybody = float(package.get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    if not amplified or cohort == clients:
        return everybody
    accountant = package.rdp.RdpAccountant(neighboring_relation=package.NeighboringRelation.REPLACE_ONE)
    one = package.SampledWithoutReplacementDpEvent(clients, cohort, package.GaussianDpEvent(noise))
    accountant.compose(one, rounds)
    return min(everybody, float(accountant.get_epsilon(delta)))
