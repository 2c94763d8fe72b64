"""A model on the whole test set."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.data.augment import normalise
from unskew.data.dataset import Dataset
from unskew.engines.network import Network
from unskew.metrics import Assessment
from unskew.types import Weights


@torch.no_grad()
def assess(
    network: Network, dataset: Dataset, inputs: Tensor, weights: Weights, batch_size: int
) -> Assessment:
    """`inputs` are the dataset's test inputs, wherever the model is. Nothing waits for the device before the
    last batch."""
    device = inputs.device
    n, C, D = len(dataset.test), len(dataset.classes), max(len(dataset.domains), 1)
    labels = dataset.test.labels.to(device)
    domains = (
        dataset.test.domains.to(device) if dataset.test.domains is not None else torch.zeros_like(labels)
    )
    order = torch.arange(n)
    if network.self_normalising:  # class-sorted files must not make batches of one class
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    confusion = torch.zeros(D * C * C, dtype=torch.int64, device=device)
    probability = torch.zeros(C, C, dtype=torch.float64, device=device)
    features: Tensor | None = None
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for rows in torch.split(order.to(device), batch_size):
        y = labels[rows]
        out = network.test(weights, normalise(inputs[rows], dataset.mean, dataset.std))
        logits = out.logits.float()
        confusion += torch.bincount((domains[rows] * C + y) * C + logits.argmax(dim=1), minlength=D * C * C)
        loss += cross_entropy(logits, y, reduction="sum")
        probability.index_add_(0, y, logits.softmax(dim=1).double())
        if features is None:
            features = torch.zeros(C, out.features.shape[1], dtype=torch.float64, device=device)
        features.index_add_(0, y, out.features.double())
    assert features is not None  # a dataset has at least one test sample
    per_domain = confusion.view(D, C, C).cpu()
    seen = per_domain.sum(dim=(0, 2)).double()[:, None]
    return Assessment(
        confusion=per_domain.sum(dim=0).numpy(),
        domains=per_domain.numpy() if dataset.domains else None,
        loss=float(loss) / n,
        mean_probability=(probability.cpu() / seen).numpy(),
        mean_features=(features.cpu() / seen).numpy(),
    )
