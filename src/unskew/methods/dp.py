"""DP-FedAvg: differential privacy of clients, with a trusted server.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR 2018. Wang,
Balle, Kasiviswanathan. Subsampled Rényi Differential Privacy and Analytical Moments Accountant. AISTATS 2019
(cohorts of fixed size).

Every update is clipped to a bound, and Gaussian noise is added to the cohort's mean: from the models that
come of it nobody can tell much of what any one client holds. How little is epsilon, told with the result.

    Delta = 1/m ( sum_k Delta_k min(1, clip / ||Delta_k||) + N(0, (noise_multiplier clip)^2 I) )

m is the size of the cohort, also where a client has no data or failed. Momentum, adaptive optimisers and
averages of the server work on Delta alone, and cost no privacy.

Weights: none, every client counts alike; weights by samples would make a large client's bound larger.

What epsilon means, at this delta:
- Of a client: neighbours are two federations in which one client's data, all of them, are replaced by any
  other data. How many clients there are, and that each has data, is public. Such a replacement moves the sum
  by 2 clip, so at the same noise_multiplier epsilon is about twice that of papers in which a client is added
  or removed.
- Cohorts are of fixed size, drawn without replacement in every round, not Poisson samples: what the drawing
  hides is bounded by Wang et al. (RDP, in dp-accounting), and never above what it would be with everybody in
  every round, which is computed exactly. Where clients keep something between their rounds (MOON's models,
  local BatchNorm statistics, momentum), drawing is taken to hide nothing.
- It covers the global models of all rounds. It does not cover what the run folder has beside: training
  losses, tallies, probes and cohorts, nor the server, which sees every update. Noise comes from the run's
  seed, so that runs repeat: whoever knows the seed can take it off again. The saved model does not tell it,
  but other files of the run folder do, and nodes on Flower are sent it. Choose one that nobody guesses.

Deviations:
- The bound is fixed, over all parameters together. noise_multiplier 0 clips alone and has no epsilon.
- Refused is what would leave unprotected: a method whose clients report more than their update, or whose
  server needs their number of steps; averaged BatchNorm statistics; a rule that revises updates before (clip,
  nnm), or that combines otherwise.
- Noise is of float32 as PyTorch draws it; attacks on the gaps between floating-point numbers are not treated.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unskew.errors import UserError, require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.accounting import accountants, epsilon
from unskew.parts.robust import without_unsound
from unskew.parts.servers import combine_equally, squared_norms, weighted_sum
from unskew.program import Program, Run
from unskew.randomness import Purpose, draw_seed
from unskew.result import Result
from unskew.trial import Trial
from unskew.types import Memory, Params, Server, ServerState, Tensors, Updates


@card("dp")
def dp(*, clip: float = 1.0, noise_multiplier: float = 1.0, delta: float = 1e-5) -> Program:
    """Clip every update and add Gaussian noise to their mean, for differential privacy of clients."""
    require(clip > 0, f"clip is {clip} but should be above 0.")
    require(noise_multiplier >= 0, f"noise_multiplier is {noise_multiplier} but should be 0 or more.")
    require(0 < delta < 1, f"delta is {delta} but should be above 0 and below 1.")

    def run(run: Run) -> Result:
        trial, base = run.trial, run.base
        _refuse_what_is_unprotected(trial, base, has_buffers=bool(run.engine().initial.buffers))

        def protected(state: ServerState, updates: Updates) -> Updates:
            if updates.reported:
                raise UserError(
                    "dp protects a client's update alone, but this method's clients also report "
                    f"'{next(iter(updates.reported))}': choose a method that reports nothing else."
                )
            mean = noisy_mean(updates, trial, state.round, clip=clip, noise_multiplier=noise_multiplier)
            m = len(updates.weight)
            # Every update is replaced by the private mean, and nothing else of the clients is passed on.
            return replace(
                updates,
                weight=torch.full_like(updates.weight, 1 / m),
                delta={name: value.expand(m, *value.shape) for name, value in mean.items()},
                buffers={},
                steps=torch.ones_like(updates.steps),
                share=1.0,
            )

        def find_accountants() -> Tensors:
            if noise_multiplier:
                accountants()
            return {}

        run.value("accountants", find_accountants, shared=False)  # fail now rather than after training
        method = base + Method(server=Server(revise=protected))
        trained = run.train("training", method)
        note = _note(trial, base, noise_multiplier=noise_multiplier, delta=delta, rounds=len(trained.rounds))
        result = run.result(trained.weights, trained.state, trained.rounds, notes=[note])
        return replace(result, hides_seed=noise_multiplier > 0)

    return Program(run, Method(server=Server(combine=combine_equally)), work=Work())


def _note(trial: Trial, base: Method, *, noise_multiplier: float, delta: float, rounds: int) -> str:
    """Say in a sentence what these rounds cost in privacy."""
    if not noise_multiplier:
        return "dp: noise_multiplier is 0, so there is no privacy: updates were clipped and nothing else."
    cohort, clients = trial.cohort, trial.federation.clients
    spent = epsilon(
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        cohort=cohort,
        clients=clients,
        delta=delta,
        amplified=_keeps_nothing(trial, base),
    )
    who = f"all {clients}" if cohort == clients else f"{cohort} of {clients}"
    drawn = "" if cohort == clients else ", drawn without replacement"
    chosen = ", nor which of them validation chose" if trial.federation.validation is not None else ""
    return (
        f"dp: ε = {spent:.4g} at δ = {delta:g} for any one client's data replaced by others, over "
        f"{rounds} rounds of {who} clients{drawn}; it covers the global models, not the training "
        f"losses, tallies and probes of the run folder{chosen}, and not against someone who knows or "
        "guesses the seed."
    )


def noisy_mean(updates: Updates, trial: Trial, round: int, *, clip: float, noise_multiplier: float) -> Params:
    """Return the mean over the cohort of clipped updates, with noise that depends on the seed and the
    round."""
    norms = squared_norms(updates.delta).sqrt()
    rows = without_unsound(updates.delta, norms.isfinite())
    mean = weighted_sum(rows, torch.where(norms > clip, clip / norms, 1.0) / trial.cohort)
    generator = torch.Generator().manual_seed(draw_seed(trial.seed, Purpose.NOISE, round))
    deviation = noise_multiplier * clip / trial.cohort
    return {
        name: value + deviation * torch.randn(value.shape, generator=generator).to(value)
        for name, value in mean.items()
    }


def _keeps_nothing(trial: Trial, base: Method) -> bool:
    """Say whether clients begin every round as if it were their first."""
    keeps = base.memory.update is not Memory().update or trial.keeps_buffers
    return not keeps and trial.budget.optimizer_state == "fresh"


def _refuse_what_is_unprotected(trial: Trial, base: Method, *, has_buffers: bool) -> None:
    """Refuse models and methods for which clipping and noise would not protect a client."""
    require(
        not (has_buffers and trial.statistics == "average"),
        "dp protects parameters, but this model's BatchNorm statistics would be averaged as they are: set "
        "model.statistics to local or batch, or model.norm to group.",
    )
    require(
        base.server.revise is Server().revise,
        "dp bounds what one client can change, which a rule that revises updates before it undoes: leave "
        "clip or nnm out.",
    )
    require(
        not base.fresh_momentum,
        "dp protects a client's update alone, but this method's server needs its number of local steps too: "
        "choose another method.",
    )
