"""A method of your own in two stages: train, ask the clients, train again.

    unskew run --method examples/two_stages.py --dataset digits --skew dirichlet:0.05

After half of the rounds clients say how often the model is right. In the other half a proximal term holds
them near the received model, the more firmly the better the model was:
L = CE + mu r / 2 ||w - w[t]||^2,  r the share of right answers.
"""

from torch import zeros

from unskew.methods import fedprox
from unskew.program import Program, Run
from unskew.result import Result
from unskew.types import Look, Scope, Tensors


def two_stages(*, mu: float = 0.1) -> Program:
    """Hold clients near the received model once it is good."""

    def run(run: Run) -> Result:
        trial = run.trial
        first = run.train("first half", run.base, until=trial.budget.rounds // 2)
        answers = run.ask("right answers", right_answers, first.served, state=first.state)
        right = sum(int(answer["right"]) for answer in answers) / max(trial.federation.population.samples, 1)
        second = run.train("second half", run.base + fedprox(mu=mu * right), start=first.state)
        notes = [f"the model was right on {right:.3f} of the clients' samples after the first half."]
        return run.result(second.weights, second.state, [*first.rounds, *second.rounds], notes=notes)

    return Program(run)


def right_answers(scope: Scope, look: Look) -> Tensors:
    """Count the client's own samples that the model it received gets right, as its answer to the server."""
    right = zeros((), device=scope.counts.device)
    for view in look(scope.anchor):
        right += (view.out.logits.argmax(1) == view.labels).sum()
    return {"right": right}
