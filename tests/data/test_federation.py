"""A dataset and who holds what of it; several datasets as domains."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from unskew.data import load
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.join import join
from unskew.data.partition import partition_of
from unskew.data.partitions import Dirichlet, Domains
from unskew.errors import UserError

DIGITS = tuple("0123456789")
REAL = pytest.mark.skipif(not os.environ.get("UNSKEW_DATA"), reason="needs real data: set UNSKEW_DATA")


def digits(name: str, n: int, shape: tuple[int, int, int], classes: tuple[str, ...] = DIGITS) -> Dataset:
    rng = np.random.RandomState(len(name) + n)
    labels = torch.arange(n) % len(classes)
    pixels = torch.from_numpy(rng.randint(0, 256, (n, *shape), dtype=np.uint8))
    return Dataset(name, Split(pixels, labels), Split(pixels[:20], labels[:20]), classes)


def domains() -> Dataset:
    return join(
        [
            digits("mnist", 600, (1, 28, 28)),
            digits("usps", 400, (1, 16, 16)),
            digits("svhn", 500, (3, 32, 32)),
            digits("syn", 300, (3, 40, 36)),
        ]
    )


class TestFederation:
    def made(self) -> Federation:
        """Client 0 as client 0 of FedVLS, Table 7: 141, 1471, 1360 and 366 samples of classes 3, 5, 8, 9."""
        counts = {3: 141, 5: 1471, 8: 1360, 9: 366}
        labels = torch.tensor([c for c, n in counts.items() for _ in range(n)] + list(range(10)))
        split = Split(torch.zeros(len(labels), 1), labels)
        dataset = Dataset("table 7", split, Split(torch.zeros(1, 1), labels[:1]), DIGITS)
        n = sum(counts.values())
        return Federation(dataset, partition_of([range(n), range(n, n + 10), []], dataset, recipe="by hand"))

    def test_counts_and_samples(self) -> None:
        made = self.made()
        assert made.clients == 3
        assert made.counts.dtype == torch.int64
        assert made.counts[0].tolist() == [0, 0, 0, 141, 0, 1471, 0, 0, 1360, 366]
        assert made.sizes.tolist() == [3338, 10, 0]
        assert made.indices(1).tolist() == list(range(3338, 3348))
        assert made.labels(1).tolist() == list(range(10))
        assert made.labels(2).tolist() == []

    def test_skew_as_text_or_object(self) -> None:
        dataset = digits("toy", 200, (1, 4, 4))
        made = federate(dataset, "dirichlet:0.5", 4, 7)
        assert federate(dataset, Dirichlet(0.5), 4, 7).cite() == made.cite()
        assert made.counts.sum() == 200


class TestJoin:
    def test_common_shape_and_domains(self) -> None:
        joined = domains()
        assert joined.name == "mnist+usps+svhn+syn"
        assert joined.domains == ("mnist", "usps", "svhn", "syn")
        assert joined.train.inputs.shape == (1800, 3, 32, 32)
        assert joined.train.inputs.dtype == torch.uint8
        assert joined.train.domains is not None
        assert torch.bincount(joined.train.domains).tolist() == [600, 400, 500, 300]
        assert joined.test.domains is not None
        assert torch.bincount(joined.test.domains).tolist() == [20] * 4
        assert joined.classes == DIGITS
        pixels = joined.train.inputs.double() / 255
        assert joined.mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
        assert joined.std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())

    def test_pixels(self) -> None:
        grey, colour = digits("grey", 30, (1, 4, 4)), digits("colour", 30, (3, 8, 8))
        grey.train.inputs[:] = torch.tensor([[0, 255], [255, 0]]).repeat(2, 2).to(torch.uint8)
        colour.train.inputs[:, 1] = 77
        joined = join([grey, colour], shape=(3, 4, 4))
        assert torch.equal(joined.train.inputs[:30], grey.train.inputs.expand(-1, 3, -1, -1))
        assert (joined.train.inputs[30:, 1] == 77).all()
        smaller = join([grey, colour], shape=(3, 2, 2))
        assert ((smaller.train.inputs[:30].int() - 128).abs() <= 3).all()  # antialiasing averages the board

    def test_sizes_are_kept_where_they_fit(self) -> None:
        svhn = digits("svhn", 50, (3, 32, 32))
        assert torch.equal(join([svhn, digits("usps", 50, (1, 16, 16))]).train.inputs[:50], svhn.train.inputs)

    @pytest.mark.parametrize(
        ("others", "message"),
        [
            ([], "at least 2 datasets, not 1"),
            ([digits("mnist", 50, (1, 28, 28))], "may be named once"),
            (
                [digits("letters", 52, (1, 28, 28), tuple(map(str, range(26))))],
                "has 10 classes and 'letters' has 26",
            ),
            (
                [digits("odd", 50, (1, 28, 28), tuple("012345678x"))],
                "class 9 is '9' in 'mnist' and 'x' in 'odd'",
            ),
            ([digits("two", 50, (2, 28, 28))], "'two' has 2 channels, which cannot become 3"),
        ],
    )
    def test_what_cannot_be_joined(self, others: list[Dataset], message: str) -> None:
        with pytest.raises(UserError) as error:
            join([digits("mnist", 50, (1, 28, 28)), *others])
        assert message in str(error.value)

    def test_tables_and_joined_datasets_cannot_be_joined(self) -> None:
        table = Dataset("table", *[Split(torch.zeros(20, 3), torch.arange(20) % 10)] * 2, DIGITS)
        with pytest.raises(UserError, match="'table' holds no images"):
            join([digits("mnist", 50, (1, 28, 28)), table])
        with pytest.raises(UserError, match="'heart-disease' holds no images"):
            unskew.load("digits+heart-disease")
        with pytest.raises(UserError, match="has domains already"):
            join([digits("x", 50, (1, 28, 28)), domains()])


class TestDomains:
    def domain_of(self, made: Federation) -> list[set[int]]:
        assert made.dataset.train.domains is not None
        return [set(made.dataset.train.domains[made.indices(k)].tolist()) for k in range(made.clients)]

    def test_every_domain_has_its_own_clients(self) -> None:
        made = federate(domains(), "dirichlet:0.5,min_size=1", 8, 1)
        assert self.domain_of(made) == [{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}]
        assert made.partition.dropped == 0
        assert made.partition.recipe.startswith("domains:2/2/2/2,fraction=1/1/1/1+dirichlet:0.5,")

    def test_uneven_numbers(self) -> None:
        assert self.domain_of(federate(domains(), "iid", 6, 1)) == [{0}, {0}, {1}, {1}, {2}, {3}]
        made = federate(domains(), "domains:6/4/3/7+dirichlet:0.5,min_size=1", 20, 1)
        assert self.domain_of(made) == [{0}] * 6 + [{1}] * 4 + [{2}] * 3 + [{3}] * 7
        assert federate(domains(), "domains:6/4/3/7+iid", 0, 1).clients == 20

    def test_fractions(self) -> None:
        made = federate(domains(), "domains:even,fraction=0.1+iid", 4, 1)
        assert made.sizes.tolist() == [60, 40, 50, 30]
        assert made.partition.dropped == 1620
        each = federate(domains(), "domains:even,fraction=0.1/0.2/1/0.01+iid", 4, 1)
        assert each.sizes.tolist() == [60, 80, 500, 3]

    def test_recipe_makes_it_again(self) -> None:
        for skew in ("iid", "domains:1/2/1/1,fraction=0.5+shards:10", "longtail:10+domains:1/1/2/1+iid"):
            clients = 0 if "domains" in skew else 9
            made = federate(domains(), skew, clients, 3)
            again = federate(domains(), made.partition.recipe, made.clients, 3)
            assert again.partition.index_sha256 == made.partition.index_sha256
            assert again.partition.recipe == made.partition.recipe

    def test_domains_are_drawn_independently(self) -> None:
        same = [digits(name, 1000, (1, 8, 8)) for name in ("aa", "bb")]
        for variant in ("clean", "fedvls"):
            made = federate(join(same), f"dirichlet:0.1,min_size=0,variant={variant}", 10, 1)
            assert made.counts[:5].tolist() != made.counts[5:].tolist()

    def test_long_tail_within_or_across_domains(self) -> None:
        within = federate(domains(), "domains:even+longtail:10+iid", 4, 1)
        assert within.counts[:, 0].tolist() == [60, 40, 50, 30]
        assert within.counts[:, 9].tolist() == [6, 4, 5, 3]
        across = federate(domains(), "longtail:10+domains:even+iid", 4, 1)
        assert across.counts.sum(dim=0)[[0, 9]].tolist() == [180, 18]

    @pytest.mark.parametrize(
        ("skew", "clients", "message"),
        [
            ("iid", 3, "3 clients cannot be spread over 4 domains"),
            ("domains:6/4+iid", 10, "gives 2 numbers of clients for the 4 domains mnist, usps, svhn, syn"),
            ("domains:even,fraction=0.1/0.2+iid", 8, "gives 2 fractions for the 4 domains"),
            ("domains:6/4/3/7+iid", 10, "6+4+3+7 = 20 clients, but 10 are asked for"),
            ("domains:1/1/1/3+shards:2", 6, "in the domain mnist: shards:2 needs"),
        ],
    )
    def test_errors(self, skew: str, clients: int, message: str) -> None:
        with pytest.raises(UserError) as error:
            federate(domains(), skew, clients, 1)
        assert message in str(error.value)

    def test_notes_name_the_domain(self) -> None:
        made = federate(domains(), Domains((4,) * 4, Dirichlet(0.01, min_size=60, max_tries=1)), 16, 1)
        assert any(note.startswith("usps: None of 1 draws") for note in made.partition.notes)


@REAL
class TestRealData:
    def test_table_7_on_cifar10_in_its_own_order(self) -> None:
        made = federate(
            load("cifar10", Path(os.environ["UNSKEW_DATA"])), "dirichlet:0.05,variant=fedvls", 10, 1
        )
        assert made.counts[0].tolist() == [0, 0, 0, 141, 0, 1471, 0, 0, 1360, 366]
        assert made.sizes.tolist() == [3338, 4957, 7015, 2772, 7429, 5021, 7689, 6418, 5219, 142]
        assert made.indices(9)[:5].tolist() == [34147, 28657, 17698, 42994, 10929]

    def test_fedntd_shards_of_cifar10(self) -> None:
        made = federate(
            load("cifar10", Path(os.environ["UNSKEW_DATA"])), "shards:2,variant=fedntd", 100, 19940817
        )
        assert made.labels(0)[[0, 250]].tolist() == [1, 4]
        assert made.counts.sum().item() == 50000

    def test_mnist_and_usps_as_domains(self, tmp_path: Path) -> None:
        folder = Path(os.environ["UNSKEW_DATA"])
        joined = join([load("mnist", folder), load("usps", folder)])
        made = federate(joined, "domains:6/4,fraction=0.01+dirichlet:0.1,min_size=1", 10, 1)
        assert made.sizes[:6].sum() == 600
        assert made.sizes[6:].sum() == 73
        made.save(tmp_path / "p.json")
        assert federate(joined, f"file:{tmp_path / 'p.json'}", 10, 1).cite().endswith(made.cite()[-13:])
