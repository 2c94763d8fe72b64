"""LEAF's JSON as a dataset of one's own."""

from __future__ import annotations

import json

import pytest
from layouts import write_leaf

import unskew
from unskew import UserError

ANN = {"x": [[0.0, 1.0], [0.5, 2.0], [1.0, 3.0], [0.2, 4.0]], "y": [0, 7, 0, 7]}
BOB = {"x": [[0.1, 5.0], [0.3, 6.0]], "y": [7, 7]}


def test_users_become_clients_in_leafs_own_split(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", {"ann": ANN, "bob": BOB})
    write_leaf(
        tmp_path / "test" / "a.json", {"ann": {"x": [[9, 9]], "y": [0]}, "eve": {"x": [[8, 8]], "y": [7]}}
    )
    dataset = unskew.load(f"leaf:{tmp_path}")
    assert dataset.classes == ("0", "7")
    assert dataset.owners == ("ann", "bob", "eve")
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 1, 1]
    assert dataset.test.inputs.tolist() == [[9, 9], [8, 8]]
    federation = unskew.federate(dataset, "natural", clients=0, seed=1)
    assert federation.names == ("ann", "bob")
    assert federation.counts.tolist() == [[2, 2], [0, 2]]


def test_files_without_a_split_are_cut_and_small_users_left_out(tmp_path):
    write_leaf(tmp_path / "all.json", {"ann": ANN, "bob": BOB})
    dataset = unskew.load(f"leaf:{tmp_path / 'all.json'},test_fraction=0.5")
    assert (len(dataset.train), len(dataset.test)) == (3, 3)
    dataset = unskew.load(f"leaf:{tmp_path},min_samples=3,test_fraction=0.5")
    assert dataset.owners == ("ann",)


def test_rows_become_images(tmp_path):
    user = {"x": [[0.0, 0.5, 1.0, 0.0]] * 4, "y": ["a", "b"] * 2}
    write_leaf(tmp_path / "a.json", {"ann": user, "bob": user})
    dataset = unskew.load(f"leaf:{tmp_path},shape=1/2/2")
    assert dataset.inputs.shape == (1, 2, 2)
    assert dataset.train.inputs[0].tolist() == [[[0, 128], [255, 0]]]
    assert dataset.classes == ("a", "b")
    with pytest.raises(UserError, match="4 numbers a sample, which are no 1×3×3 image"):
        unskew.load(f"leaf:{tmp_path},shape=1/3/3")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("users"), "does not hold LEAF's users, num_samples and user_data"),
        (lambda c: c["users"].append("eve"), "does not hold LEAF's users, num_samples and user_data"),
        (lambda c: c["user_data"].pop("bob"), "has no lists x and y for user 'bob'"),
        (
            lambda c: c["num_samples"].__setitem__(0, 3),
            "another number of samples of user 'ann' than num_samples says",
        ),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(0, [1]), "samples of user 'bob' that are no rows"),
        (
            lambda c: c["user_data"]["bob"].update(x=[[1], [2]]),
            "has 1 numbers a sample of 'bob' and 2 elsewhere",
        ),
        (lambda c: c["user_data"]["bob"].update(y=[1.5, 0]), "labels of user 'bob' that are neither"),
        (lambda c: c["user_data"]["bob"].update(x=["a.png", "b.png"]), "texts or names of files as samples"),
    ],
)
def test_what_is_not_leafs_gets_one_sentence(tmp_path, change, sentence):
    write_leaf(tmp_path / "a.json", {"ann": ANN, "bob": BOB})
    content = json.loads((tmp_path / "a.json").read_text())
    change(content)
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        unskew.load(f"leaf:{tmp_path}")
