"""The bare loop: FedAvg in plain PyTorch, one client after another, and nothing else."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.work import Batches, Laps, arguments


def main() -> None:
    work, report, setting = arguments()
    torch.set_num_threads(int(setting))
    torch.manual_seed(1)
    budget, data = work.budget, work.client_data()
    model, laps = work.build(), Laps()
    served = work.initial
    for _ in range(budget.rounds):
        mean = {name: torch.zeros_like(value) for name, value in served.items()}
        for client in torch.randperm(budget.clients)[: budget.cohort].tolist():
            model.load_state_dict(served)
            optimizer = torch.optim.SGD(model.parameters(), lr=budget.lr)
            batches = Batches(data[client], budget.batch_size)
            for _ in range(budget.epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
            for name, value in model.state_dict().items():
                mean[name] += value / budget.cohort
        served = mean
        laps()
    model.load_state_dict(served)
    laps.finish(report, work.accuracy(model))


if __name__ == "__main__":
    main()
