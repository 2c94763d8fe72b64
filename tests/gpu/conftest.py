from pathlib import Path

import numpy as np
import pytest
import torch

from unskew import federate
from unskew.data.dataset import Dataset, Split


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but one of each file if there is no GPU. That one says why it is skipped; to skip a
    thousand tests takes seconds."""
    if torch.cuda.is_available():
        return
    here = Path(__file__).parent
    first = {item.path: item for item in reversed(items) if here in item.path.parents}
    dropped = [item for item in items if item.path in first and first[item.path] is not item]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if first.get(item.path, item) is item]


@pytest.fixture(scope="session")
def images():
    """Return a federation of small colour images, skewed among five clients, each of which has partial
    batches."""
    rng = np.random.default_rng(0)
    means = rng.integers(0, 256, (4, 3, 32, 32))

    def split(n: int) -> Split:
        labels = np.arange(n) % 4
        pixels = (0.6 * means[labels] + 0.4 * rng.integers(0, 256, (n, 3, 32, 32))).astype(np.uint8)
        return Split(torch.from_numpy(pixels), torch.from_numpy(labels))

    dataset = Dataset("images", split(200), split(60), tuple("abcd"), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return federate(dataset, "dirichlet:0.3", clients=5, seed=1)
