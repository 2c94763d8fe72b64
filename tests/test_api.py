"""The public names: what is here can be relied on, and a change of it is a decision."""

import importlib
import importlib.util

import pytest

import unskew
from unskew import flower, losses
from unskew.errors import UserError


def test_the_package_offers_these_names():
    assert sorted(unskew.__all__) == [
        "Advice", "Augment", "Budget", "Checkpoints", "Compared", "Dataset", "Evaluation", "Faults",
        "Federation", "Method", "Probe", "Program", "Result", "Round", "Stop", "TrainedModel", "Trial",
        "UserError", "advise", "compare", "data", "federate", "flower", "load", "load_model", "losses",
        "methods", "metrics", "models", "plot", "train",
    ]  # fmt: skip
    assert all(hasattr(unskew, name) for name in unskew.__all__)


def test_train_is_the_function_though_its_module_has_that_name_too():
    assert unskew.train is importlib.import_module("unskew.train").train


def test_the_losses_are_these():
    public = {name for name, value in vars(losses).items() if callable(value) and not name.startswith("_")}
    assert public >= {
        "calibrated_cross_entropy", "class_balanced_cross_entropy", "contrastive_term", "decorrelation_term",
        "decoupled_distillation", "distillation", "focal_loss", "label_masking_distillation",
        "label_smoothing_cross_entropy", "logit_suppression", "manifold_term", "margin_cross_entropy",
        "not_true_distillation", "partial_distillation", "prototype_margin_term", "proximal_term",
        "restricted_cross_entropy", "vacant_distillation",
    }  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed here")
def test_what_needs_flower_says_so():
    assert callable(flower.loss)
    with pytest.raises(UserError, match="Flower is not here: install it"):
        flower.strategy  # noqa: B018
