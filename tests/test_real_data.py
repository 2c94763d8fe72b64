"""The publishers' own data, from file to class-wise answer; skipped where UNSKEW_DATA names no folder."""

import json
import os

import pytest

from unskew.data import load

pytestmark = pytest.mark.skipif(
    not os.environ.get("UNSKEW_DATA"), reason="UNSKEW_DATA does not name a folder with real datasets"
)


def run(unskew, *arguments):
    answer = unskew("run", *arguments, "--quiet", "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out.splitlines()[-1])


def test_fashion_mnist_learns_and_repeats_bit_for_bit(unskew):
    command = ["--dataset", "fashion-mnist", "--skew", "dirichlet:0.5", "--clients", "40", "--cohort", "4"]
    command += ["--model", "mlp-small", "--rounds", "6", "--epochs", "1", "--lr", "0.05"]
    command += ["--set", "evaluation.every=6"]
    first, again = run(unskew, *command), run(unskew, *command)
    assert first["weights_sha256"] == again["weights_sha256"]
    assert first["accuracy"]["last"] > 0.6
    assert first["classes"][0] == "T-shirt/top"


def test_cifar10_with_augmentation_and_batchnorm(unskew):
    summary = run(
        unskew, "--dataset", "cifar10", "--skew", "dirichlet:0.05", "--clients", "100", "--cohort", "2",
        "--model", "lenet5-bn", "--rounds", "2", "--epochs", "1", "--batch-size", "50",
        "--augment", "crop:4,flip,autoaugment,cutout:16", "--set", "evaluation.every=2",
        "--set", "skew.seed=3",
    )  # fmt: skip
    assert summary["rounds"] == 2
    assert len(summary["class_accuracy"]) == 10
    assert sum(map(sum, summary["confusion"])) == 10_000


def test_digits_of_two_domains(unskew):
    summary = run(
        unskew, "--dataset", "mnist+usps", "--skew", "domains:3/2,fraction=0.02/0.1+dirichlet:0.5",
        "--model", "lenet5", "--rounds", "2", "--epochs", "1", "--set", "evaluation.every=2",
    )  # fmt: skip
    assert set(summary["domains"]) == {"mnist", "usps"}
    assert summary["clients"] == 5


def test_the_printed_table_of_the_fedvls_paper(unskew):
    """Its Table 7 (captioned beta = 0.1) on the real CIFAR-10: client 0's row."""
    answer = unskew(
        "skew", "--dataset", "cifar10", "--skew", "dirichlet:0.05,variant=fedvls", "--clients", "10",
        "--seed", "1", "--json",
    )  # fmt: skip
    skew = json.loads(answer.out.splitlines()[-1])
    assert skew["counts"][0] == [0, 0, 0, 141, 0, 1471, 0, 0, 1360, 366]
    assert skew["sizes"] == [3338, 4957, 7015, 2772, 7429, 5021, 7689, 6418, 5219, 142]


def test_cifar10_is_the_published_one():
    dataset = load("cifar10")
    assert dataset.train.inputs.shape == (50_000, 3, 32, 32)
    assert dataset.train.labels.bincount().tolist() == [5000] * 10
    assert dataset.classes[3] == "cat"
