"""unskew through its public API."""

from __future__ import annotations

import unskew
from benchmarks.work import Laps, Work, arguments
from unskew.data import Dataset, Federation, Split, partition_of


def federation(work: Work) -> Federation:
    dataset = Dataset(
        work.budget.model,
        Split(work.pixels, work.labels),
        Split(work.test_pixels, work.test_labels),
        tuple(str(c) for c in range(10)),
        (work.mean,),
        (work.std,),
    )
    holdings = [mine.numpy() for mine in work.holdings]
    return Federation(dataset, partition_of(holdings, dataset, recipe="equal shares"))


def main() -> None:
    work, report, setting = arguments()
    budget, laps, model = work.budget, Laps(), work.build()
    trial = unskew.Trial(
        federation(work),
        model,
        unskew.Budget(
            rounds=budget.rounds,
            cohort=budget.cohort,
            epochs=budget.epochs,
            batch_size=budget.batch_size,
            lr=budget.lr,
            momentum=0,
            weight_decay=0,
        ),
        unskew.Evaluation(every=budget.rounds),
        engine=setting,
        workers=work.cores,
        device="cpu",
    )
    result = unskew.train(trial, on_round=lambda _: laps())
    model.load_state_dict(result.weights.params | result.weights.buffers)
    laps.finish(report, work.accuracy(model), "unskew")


if __name__ == "__main__":
    main()
