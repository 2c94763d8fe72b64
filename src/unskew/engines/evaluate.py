"""Tests of a model on the whole test or validation set: sums over batches, which can be computed anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew import metrics
from unskew.data.augment import normalise
from unskew.data.dataset import Dataset, Split
from unskew.engines.network import Network
from unskew.metrics import Assessment, ProbabilityScores
from unskew.trial import Trial
from unskew.types import Out, Tensors, Weights

EvaluationSet = Literal["test", "validation"]


def evaluators(trial: Trial, network: Network, device: torch.device) -> dict[EvaluationSet, Evaluator]:
    """Return an evaluator for the test set, and one for the validation set if there is one."""
    federation, batch_size = trial.federation, trial.evaluation.batch_size
    each: dict[EvaluationSet, Evaluator] = {
        "test": Evaluator(federation.dataset, network, device, batch_size)
    }
    if federation.validation is not None:
        each["validation"] = Evaluator(federation.dataset, network, device, batch_size, federation.validation)
    return each


ANSWERS = "answers"
"""The name of the only total that is not a sum: it has the predicted class of each sample."""


class Evaluator:
    """Tests models on samples that lie on a device: those of the test set, or others."""

    def __init__(
        self,
        dataset: Dataset,
        network: Network,
        device: torch.device,
        batch_size: int,
        samples: Split | None = None,
    ) -> None:
        self.dataset, self.network = dataset, network
        test = samples or dataset.test
        domains = torch.zeros_like(test.labels) if test.domains is None else test.domains
        tensors = {"inputs": test.inputs, "labels": test.labels, "domains": domains}
        self.test = {name: value.to(device) for name, value in tensors.items()}
        order = torch.arange(len(test))
        if network.self_normalising:  # samples sorted by class must not give batches of one class
            order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
        self.batches = torch.split(order.to(device), batch_size)
        self.keeps_answers = test.owners is not None
        """Whether the prediction for each sample is kept, from which the results of each owner follow."""
        self.answer_type = next(
            kind
            for kind in (torch.uint8, torch.int16, torch.int32)
            if len(dataset.classes) <= torch.iinfo(kind).max
        )

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def batch_totals(self, weights: Weights, batch: int) -> Tensors:
        """Return what one batch adds to the totals of a model."""
        return self.totals(weights, self.test, self.batches[batch])

    @torch.no_grad()
    def totals(self, weights: Weights, test: Tensors, rows: Tensor) -> Tensors:
        """Return what some rows of the test set add to the totals of a model."""
        y, C, D = test["labels"][rows], len(self.dataset.classes), max(len(self.dataset.domains), 1)
        out = self._out(weights, test, rows)
        logits = out.logits.float()

        # Products, because on a GPU index_add_ adds floats in any order, and bincount waits.
        members = (torch.arange(C, device=y.device)[:, None] == y).double()

        def by_class(values: Tensor) -> Tensor:
            return members @ values.double()

        answers = logits.argmax(dim=1)
        cells = torch.zeros(D * C * C, dtype=torch.int64, device=y.device)
        sums = {
            "confusion": cells.index_add_(
                0, (test["domains"][rows] * C + y) * C + answers, torch.ones_like(y)
            ),
            "loss": cross_entropy(logits, y, reduction="sum").double(),
            "probability": by_class(logits.softmax(dim=1)),
            "features": by_class(out.features),
        }
        return sums | ({ANSWERS: answers.to(self.answer_type)} if self.keeps_answers else {})

    def _out(self, weights: Weights, test: Tensors, rows: Tensor) -> Out:
        x = normalise(test["inputs"][rows], self.dataset.mean, self.dataset.std)
        return self.network.test(weights, x)

    @torch.no_grad()
    def probability_scores(self, weights: Weights) -> ProbabilityScores:
        """Return how good the probabilities of a model are, computed from those of all samples at once."""
        logits = torch.cat([self._out(weights, self.test, rows).logits for rows in self.batches])
        labels = self.test["labels"][torch.cat(self.batches)]
        probabilities = logits.double().softmax(dim=1).cpu().numpy()
        return metrics.probability_scores(probabilities, labels.cpu().numpy())

    def sum(self, totals: Iterable[Tensors]) -> Tensors:
        """Add up the totals of all batches to those of the whole test set. The batches have to come in order,
        on which sums of floats depend. This does not wait for the device."""
        parts = list[Tensor]()

        def without_answers(total: Tensors) -> Tensors:
            parts.extend(value for name, value in total.items() if name == ANSWERS)
            return {name: value for name, value in total.items() if name != ANSWERS}

        added = reduce(
            lambda a, b: {name: value + b[name] for name, value in a.items()}, map(without_answers, totals)
        )
        if not parts:
            return added
        answers = torch.cat(parts)
        return added | {ANSWERS: torch.empty_like(answers).index_copy_(0, torch.cat(self.batches), answers)}

    def assessment(self, total: Tensors) -> Assessment:
        """Return the result of a test from the totals of the whole test set."""
        C, D = len(self.dataset.classes), max(len(self.dataset.domains), 1)
        per_domain = total["confusion"].view(D, C, C).cpu()
        seen = per_domain.sum(dim=(0, 2)).double()[:, None]
        return Assessment(
            confusion=per_domain.sum(dim=0).numpy(),
            domains=per_domain.numpy() if self.dataset.domains else None,
            loss=float(total["loss"]) / len(self.test["labels"]),
            mean_probability=(total["probability"].cpu() / seen).numpy(),
            mean_features=(total["features"].cpu() / seen).numpy(),
            answers=total[ANSWERS].cpu().numpy() if ANSWERS in total else None,
        )
