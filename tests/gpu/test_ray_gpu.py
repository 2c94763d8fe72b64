"""A Ray cluster with a GPU."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from clusters import running
from federations import flat
from unskew import Budget, Trial, train
from unskew.methods import METHODS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    # Ray opens sockets and log files that it leaves to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_clusters_gpu_gives_what_this_one_gives(images):
    budget = Budget(rounds=3, epochs=2, batch_size=16, lr=0.05)
    trial = Trial(images, "cnn", budget=budget, device="cuda", engine="graphs")
    with running(["--num-cpus=2", "--num-gpus=1"], GPU=1):
        for name in ("fedvls", "scaffold", "fedgela"):
            here, there = (
                train(replace(trial, engine=engine), METHODS[name]()) for engine in ("graphs", "ray")
            )
            assert torch.allclose(flat(here.weights), flat(there.weights), rtol=1e-5, atol=1e-6)
