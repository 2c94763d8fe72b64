"""The public names: what is here can be relied on, and a change of it is a decision. Names of classes, public
or not, stand for one thing each."""

import ast
import importlib
import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

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


def type_aliases(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The types that a module gives a name, such as Floats, and what they are; not the parameters of
    commands, which are Annotated and called as their flags."""
    for node in module.body:
        if isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("Annotated["):
            is_what = ast.unparse(node.value).replace("npt.", "")
            yield from ((each.id, is_what) for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            yield ast.unparse(node.target), ast.unparse(node.value)


def test_no_name_stands_for_several_classes_or_types():
    folder = Path(unskew.__file__).parent
    homes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in folder.rglob("*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        where = ".".join(["unskew", *path.relative_to(folder).with_suffix("").parts])
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name][f"class {where}"].append(where)
        for name, is_what in type_aliases(module):
            if not name.isupper() and name[0].isupper():
                homes[name][is_what].append(where)
    assert "Trial" in homes
    assert "Outcome" in homes
    shared = [
        f"{name}: {' and '.join(sorted(place for places in each.values() for place in places))}"
        for name, each in sorted(homes.items())
        if len(each) > 1
    ]
    assert not shared, "\n".join(["one name stands for several things, rename all but one of each:", *shared])


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed here")
def test_what_needs_flower_says_so():
    assert callable(flower.loss)
    with pytest.raises(UserError, match="Flower is not here: install it"):
        flower.strategy  # noqa: B018
