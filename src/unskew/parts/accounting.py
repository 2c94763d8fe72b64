"""The cost in privacy of noisy means of clients' updates, by the accountants of dp-accounting."""

from __future__ import annotations

import math
from typing import Any

from unskew.errors import UserError


def accountants() -> Any:
    """Return the package dp-accounting, or refuse if it is not installed."""
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
    """Return the ε that these rounds cost at this δ, if any one client's data are replaced by others.

    Every round adds Gaussian noise to the sum of a cohort's updates. Its deviation is noise_multiplier times
    the largest norm that an update can have. `amplified` says that cohorts are drawn without replacement,
    each independently of the rounds before, and that a client keeps nothing from round to round.
    """
    package = accountants()
    # A client that is replaced changes the sum by up to twice the largest norm.
    noise = noise_multiplier / 2
    # Several rounds of Gaussian noise are equivalent to one with less noise, so this is exact.
    without_drawing = float(package.get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    if not amplified or cohort == clients:
        return without_drawing
    accountant = package.rdp.RdpAccountant(neighboring_relation=package.NeighboringRelation.REPLACE_ONE)
    one = package.SampledWithoutReplacementDpEvent(clients, cohort, package.GaussianDpEvent(noise))
    accountant.compose(one, rounds)
    return min(without_drawing, float(accountant.get_epsilon(delta)))
