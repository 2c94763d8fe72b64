"""The use of trained models: loading, prediction, export and saving."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data import layouts
from torch import nn

import unskew as toolkit
from federations import split
from unskew import Budget, Dataset, Federation, Method, Result, Trial, UserError, load_model, train
from unskew.data.arrays import from_arrays
from unskew.methods import METHODS
from unskew.methods.assemble import assemble
from unskew.models import Tuning
from unskew.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("no_workers")
BRIEF = ["--rounds", "1", "--epochs", "1", "--engine", "loop", "--quiet", "--json"]
ONE = Budget(rounds=1, epochs=1)


@pytest.fixture(scope="module")
def small(digits: Dataset) -> Federation:
    """Three clients with 40 digits each, of which each lacks classes."""
    order = np.argsort(digits.train.labels.numpy()[:120], kind="stable")
    return split(digits, *np.split(order, 3))


def confusion(model: TrainedModel, dataset: Dataset, raw: Any = None) -> NDArray[np.int64]:
    C = len(dataset.classes)
    with torch.no_grad():
        found = model(dataset.test.inputs if raw is None else raw).argmax(dim=1).numpy()
    return np.bincount(dataset.test.labels.numpy() * C + found, minlength=C * C).reshape(C, C)


def whole_confusion(folder: Path, dataset: Dataset) -> NDArray[np.int64]:
    """Return the confusion matrix of the model of a run, summed over clients that have a model each."""
    told = json.loads((folder / "model.json").read_text())
    clients = [each["client"] for each in told["network"].get("clients", [])] or [None]
    return np.sum([confusion(load_model(folder, client=each), dataset) for each in clients], axis=0)


# ---- The loaded model is the tested one


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_model_says_what_the_run_did(name: str, small: Federation, tmp_path: Path) -> None:
    options = {"pkd": {"expert_rounds": 1}}.get(name, {})
    method, _ = assemble({name: options})
    budget = Budget(rounds=2, epochs=1)
    result = train(Trial(small, "mlp-small", budget=budget, engine="loop", statistics="average"), method)
    result.save(tmp_path / "run")
    assert (whole_confusion(tmp_path / "run", small.dataset) == result.final.confusion).all()


def test_one_sample_is_read_by_the_oldest_pytorch_too(small: Federation, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delattr(torch.compiler, "is_exporting", raising=False)  # it came with 2.7
    make = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    train(Trial(small, make, budget=ONE, engine="loop", statistics="batch")).save(tmp_path / "run")
    model = load_model(tmp_path / "run", model=make)
    assert model(small.dataset.test.inputs[:1]).shape == (1, 10)


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
def test_batch_norm_is_as_in_the_test(statistics: str, small: Federation, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10)
        )

    result = train(Trial(small, make, budget=ONE, engine="loop", statistics=statistics))
    model = load_model(result.save(tmp_path / "run"), model=make)
    test = small.dataset.test
    order = torch.arange(len(test))
    if statistics != "average":  # as the evaluator takes them: mixed, all in one batch
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    found = model(test.inputs[order]).argmax(dim=1)
    confused = np.zeros((10, 10), np.int64)
    np.add.at(confused, (test.labels[order].numpy(), found.numpy()), 1)
    assert (confused == result.final.confusion).all()
    assert model(test.inputs[:1]).isfinite().all()


def test_a_model_tells_what_it_is(small: Federation, tmp_path: Path) -> None:
    result = train(Trial(small, "mlp-small", budget=ONE, engine="loop"), toolkit.methods.fedprox(mu=0.5))
    model = load_model(result.save(tmp_path / "run"))
    assert (model.method, model.round, model.training) == ("fedprox:mu=0.5", 1, False)
    assert model.classes == tuple("0123456789")
    x = small.dataset.test.inputs[:5]
    assert model.probabilities(x).sum(dim=1) == pytest.approx(1.0)
    assert model.predict(x) == [model.classes[at] for at in model(x).argmax(dim=1)]
    # The file alone is enough.
    (tmp_path / "run" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    assert torch.equal(load_model(tmp_path / "alone.safetensors")(x), model(x))


def test_images_may_lie_in_any_layout(small: Federation, tmp_path: Path) -> None:
    model = load_model(train(Trial(small, "mlp-small", budget=ONE, engine="loop")).save(tmp_path / "run"))
    x = small.dataset.test.inputs[:6]
    for same in (
        x.numpy(),
        x[:, 0],
        x.permute(0, 2, 3, 1),
        x.float() / 255,
        x.to(torch.int64),
        x.numpy() / 255,
    ):
        assert torch.equal(model(same), model(x))
    with pytest.raises(UserError, match=r"shape \[6, 1, 8, 4\], but the model reads \[n, 1, 8, 8\]"):
        model(x[..., :4])
    with pytest.raises(UserError, match=r"give whole numbers 0..255 or floats in 0..1"):
        model(x.float())


class Mine(nn.Module):
    def __init__(self, hidden: int = 7) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("method", ["fedavg", "fedgela", "fedconcat"])
def test_code_of_ones_own_runs_only_when_it_is_given(method: str, small: Federation, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return Mine(hidden=12)

    budget = Budget(rounds=2, epochs=1)
    result = train(Trial(small, make, budget=budget, engine="loop"), METHODS[method]())
    folder = result.save(tmp_path / "run")
    with pytest.raises(UserError, match="which no run folder chooses: give it yourself"):
        load_model(folder)
    assert (confusion(load_model(folder, model=make), small.dataset) == result.final.confusion).all()
    with pytest.raises(UserError, match="does not hold the weights"):
        load_model(folder, model=Mine)


TUNINGS = {
    "lora": Tuning(lora=2, lora_alpha=3.0),
    "lora and the head": Tuning(lora=2, train_only=("head",)),
    "frozen body": Tuning(freeze=("body",)),
}


@pytest.mark.parametrize("method", ["fedavg", "fedconcat", "local-only"])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_what_was_tuned_in_parts_is_loaded_whole(
    tuning: str, method: str, small: Federation, tmp_path: Path
) -> None:
    trial = Trial(
        small, "mlp-small", budget=Budget(rounds=2, epochs=1), engine="loop", tuning=TUNINGS[tuning]
    )
    result = train(trial, METHODS[method]())
    folder = result.save(tmp_path / "run")
    assert (whole_confusion(folder, small.dataset) == result.final.confusion).all()


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
def test_a_frozen_batch_norm_is_as_in_the_test(statistics: str, small: Federation, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10)
        )

    tuning = Tuning(train_only=("4",))
    result = train(Trial(small, make, budget=ONE, engine="loop", statistics=statistics, tuning=tuning))
    model = load_model(result.save(tmp_path / "run"), model=make)
    order = torch.arange(len(small.dataset.test))
    if statistics == "batch":  # as the evaluator takes them: mixed, all in one batch
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))
    found = model(small.dataset.test.inputs[order]).argmax(dim=1)
    confused = np.zeros((10, 10), np.int64)
    np.add.at(confused, (small.dataset.test.labels[order].numpy(), found.numpy()), 1)
    assert (confused == result.final.confusion).all()


def test_the_round_that_validation_chose_is_loaded(unskew, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, inputs, classes, width=12):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))\n"
    )
    flags = ["--model", "net.py:Net", "--set", "model.width=9", "--validation", "0.2", "--lr", "0.5"]
    flags += ["--clients", "3", "--skew", "dirichlet:0.1", "--rounds", "5", *BRIEF[2:]]
    answer = unskew("run", *flags, "--out", "run")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    model = load_model("run", model="net.py:Net")
    assert (model.round, model.model_file.network.name) == (told["validation"]["round"], "net.py:Net")
    assert confusion(model, toolkit.load("digits")).tolist() == told["confusion"]
    trial = Trial(
        toolkit.federate(toolkit.load("digits"), "dirichlet:0.1", clients=3, seed=1, validation=0.2),
        "mlp-small", budget=ONE, engine="loop", stop=toolkit.Stop(metric="macro-f1"),
    )  # fmt: skip
    train(trial).save("mine")
    again = unskew("run", "mine/experiment.toml", "--quiet", "--json", "--out", "theirs")
    assert again.code == 0, again.err
    assert Path("mine/model.safetensors").read_bytes() == Path("theirs/model.safetensors").read_bytes()


# ---- Tables, folders and texts, from the command line


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


HEART = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)


def patients() -> list[list[str]]:
    """Return the rows of the patients of Cleveland, as the file has them."""
    from unskew.data.sources import heart

    path = Path(heart.__file__).parent / "heart_disease" / "processed.cleveland.data"
    return list(csv.reader(path.read_text().splitlines()))


def test_patients_are_predicted_from_a_table_as_hospitals_write_it(unskew, tmp_path: Path) -> None:
    data = ["--dataset", "heart-disease", "--skew", "natural"]
    assert unskew("run", *data, *BRIEF, "--out", "run").code == 0
    heart = toolkit.load("heart-disease")
    confused = json.loads(Path("run/summary.json").read_text())["confusion"]
    model = load_model("run")
    with torch.no_grad():  # features as the dataset holds them
        found = model.core(heart.test.inputs).logits.argmax(dim=1)
    assert confused == np.histogram2d(heart.test.labels, found, bins=2)[0].tolist()

    rows = patients()[:40]
    order = list(reversed(range(13)))  # columns in another order, one more, and no label
    lines = [["id", *(HEART[at] for at in order)], *(["x", *(row[at] for at in order)] for row in rows)]
    Path("new.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    answer = unskew("predict", "run", "new.csv", "--out", "out/predictions.csv", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert (told["samples"], told["notes"]) == (40, ["the model does not read the column id."])
    written = rows_of(Path("out/predictions.csv").read_text())
    assert list(written[0]) == ["row", "class", "probability:healthy", "probability:diseased"]
    assert [row["row"] for row in written] == [str(at) for at in range(2, 42)]
    raw = [dict(zip(HEART, row, strict=True)) for row in rows]
    probabilities = model.probabilities(raw).numpy()
    assert [float(row["probability:diseased"]) for row in written] == pytest.approx(probabilities[:, 1])
    assert [row["class"] for row in written] == model.predict(raw)
    numbers = np.array([[float(cell) if cell != "?" else np.nan for cell in row[:13]] for row in rows])
    assert model.probabilities(numbers).numpy() == pytest.approx(probabilities)
    # A blood pressure of 0 is one that nobody has measured.
    assert torch.equal(model([raw[0] | {"trestbps": 0}]), model([raw[0] | {"trestbps": None}]))

    assert "there is already" not in unskew("predict", "run", "new.csv").err
    assert "is there already" in unskew("predict", "run", "new.csv", "--out", "out/predictions.csv").err
    Path("strange.csv").write_text(Path("new.csv").read_text().replace(",4.0,", ",9.0,"))
    assert "'cp' has a category that no training row had" in unskew("predict", "run", "strange.csv").err
    Path("short.csv").write_text("age,sex\n60,1\n")
    assert "short.csv lacks the columns cp, trestbps" in unskew("predict", "run", "short.csv").err
    # How columns are read is settled: no option of a table is named as a remedy.
    Path("word.csv").write_text(Path("new.csv").read_text().replace(rows[0][0], "old", 1))
    word = "has 'old' in row {}, column 'age': put a number there."
    assert unskew("predict", "run", "word.csv").err == f"unskew: word.csv {word.format(2)}\n"
    with pytest.raises(UserError, match=f"the input {word.format(0)}$"):
        model([raw[0] | {"age": "old"}])
    assert "the model reads tables: give a .csv" in unskew("predict", "run", "out").err


def test_each_site_may_have_a_scale_of_its_own(unskew, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        f"{n % 2 + rng.normal() / 4 + shift:.3f},{site},{'yn'[n % 2]}\n"
        for site, shift in (("north", 0), ("south", 50))
        for n in range(40)
    ]
    Path("all.csv").write_text("".join(["a,site,kind\n", *lines]))
    spec = "csv:all.csv,label=kind,site=site,scale=site"
    assert unskew("run", "--dataset", spec, "--skew", "natural", *BRIEF, "--out", "run").code == 0
    by_column = unskew("predict", "run", "all.csv")
    assert (by_column.code, by_column.err) == (0, "note: the model does not read the column kind.\n")
    Path("south.csv").write_text("".join(["a\n", *(f"{line.split(',')[0]}\n" for line in lines[40:])]))
    by_option = rows_of(unskew("predict", "run", "south.csv", "--site", "south").out)
    assert "rows that name no site are scaled by themselves" in unskew("predict", "run", "south.csv").err
    probabilities = [float(row["probability:y"]) for row in by_option]
    assert [float(row["probability:y"]) for row in rows_of(by_column.out)[40:]] == pytest.approx(
        probabilities
    )
    raw = [{"a": line.split(",")[0], "site": "south"} for line in lines[40:]]
    model = load_model("run", site="south")
    assert load_model("run").probabilities(raw)[:, 1].numpy() == pytest.approx(probabilities)
    assert model.probabilities(np.array([[50.5]])).shape == (1, 2)
    assert "unknown site 'east'" in unskew("predict", "run", "south.csv", "--site", "east").err
    Path("one.csv").write_text("a\n50.5\n")
    assert "give at least 10 rows of it at once" in unskew("predict", "run", "one.csv").err
    assert unskew("export", "run", "--to", "torch-export", "--out", "m.pt2", "--site", "south").code == 0
    numbers = torch.tensor([[50.5], [49.0]], dtype=torch.float64)
    logits = torch.export.load("m.pt2").module()(numbers)[0]
    assert logits.numpy() == pytest.approx(model(numbers).numpy(), abs=1e-6)


def test_each_client_has_a_model_of_its_own(unskew, tmp_path: Path) -> None:
    data = ["--dataset", "heart-disease", "--skew", "natural", "--method", "local-only"]
    assert unskew("run", *data, *BRIEF, "--out", "run").code == 0
    heart = toolkit.load("heart-disease")
    assert "choose one with --client" in unskew("predict", "run", "x.csv").err
    assert "holds no model of client 'Rome'" in unskew("predict", "run", "x.csv", "--client", "Rome").err
    by_name, by_number = load_model("run", client="Long Beach"), load_model("run", client=3)
    assert torch.equal(by_name.core(heart.test.inputs).logits, by_number.core(heart.test.inputs).logits)
    each = [load_model("run", client=at).core(heart.test.inputs).logits.argmax(dim=1) for at in range(4)]
    summed = np.sum([np.histogram2d(heart.test.labels, found, bins=2)[0] for found in each], axis=0)
    assert summed.tolist() == json.loads(Path("run/summary.json").read_text())["confusion"]
    lines = [",".join(HEART), *(",".join(row) for row in patients()[:3])]
    Path("x.csv").write_text("\n".join(lines) + "\n")
    answer = unskew("predict", "run", "x.csv", "--client", "Hungary")
    assert (answer.code, len(rows_of(answer.out))) == (0, 3)


def test_a_number_means_a_client_and_a_text_must_mean_one(unskew, tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 5},{'ab'[n % 2]},{1 + n % 3}" for n in range(60)]
    (tmp_path / "sites.csv").write_text("\n".join(["x,z,label,site", *rows]))
    flags = [
        "--dataset",
        "csv:sites.csv,label=label,site=site",
        "--skew",
        "natural",
        "--method",
        "local-only",
    ]
    assert unskew("run", *flags, *BRIEF, "--out", "run").code == 0
    assert [load_model("run", client=number).client.client for number in range(3)] == [0, 1, 2]
    assert load_model("run", client="3").client.client == 2
    with pytest.raises(UserError, match="is the name of one client and the number of another"):
        load_model("run", client="1")


def test_class_names_that_are_numbers_stay_as_they_are(unskew, tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 5},{(-1) ** n}" for n in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["x,z,label", *rows]))
    flags = ["--dataset", "csv:all.csv,label=label", "--clients", "2", "--skew", "iid"]
    assert unskew("run", *flags, *BRIEF, "--out", "run").code == 0
    answer = unskew("predict", "run", "all.csv", "--out", "-")
    assert answer.code == 0, answer.err
    assert {row["class"] for row in rows_of(answer.out)} <= {"-1", "1"}


def test_a_folder_of_images_is_predicted_flat_or_nested(unskew, tmp_path: Path) -> None:
    for kind, light in (("dark", 40), ("light", 160)):
        for at in range(12):
            image = layouts.noise(at, 8, 8) // 4 + np.uint8(light)
            layouts.write_image(tmp_path / "images" / kind / f"{at}.png", image)
    data = ["--dataset", "folder:images,size=6,channels=3", "--skew", "iid", "--clients", "2"]
    assert unskew("run", *data, *BRIEF, "--set", "budget.epochs=5", "--out", "run").code == 0
    dataset = toolkit.load("folder:images,size=6,channels=3")
    summary = json.loads(Path("run/summary.json").read_text())
    assert confusion(load_model("run"), dataset).tolist() == summary["confusion"]

    answer = unskew("predict", "run", "images")
    assert answer.code == 0, answer.err
    assert "24 of 24 images were resized to 6x6" in answer.err
    nested = {row["file"]: row for row in rows_of(answer.out)}
    flat = rows_of(unskew("predict", "run", "images/dark").out)
    assert len(nested) == 24
    for row in flat:
        same = nested[f"dark/{row['file']}"]
        assert row["class"] == same["class"]
        assert float(row["probability:dark"]) == pytest.approx(float(same["probability:dark"]), abs=1e-6)
    np.savez("x.npz", x=dataset.test.inputs.permute(0, 2, 3, 1).numpy())
    assert len(rows_of(unskew("predict", "run", "x.npz").out)) == len(dataset.test)
    (tmp_path / "images" / "dark" / "0.png").write_bytes(b"no image")
    answer = unskew("predict", "run", "images", "--out", "p.csv")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "0.png cannot be read as an image" in answer.err
    assert not Path("p.csv").exists()


def test_bytes_of_another_range_than_in_training_are_noted(unskew, tmp_path: Path) -> None:
    assert unskew("run", "--skew", "iid", "--clients", "2", *BRIEF, "--out", "run").code == 0
    images = toolkit.load("digits").test.inputs[:20].numpy()
    np.savez("raw.npz", x=images // 16)  # about 0..16, as scikit-learn has them
    np.savez("whole.npz", x=images)
    np.savez("one.npz", x=images[:1] // 16)
    answer = unskew("predict", "run", "raw.npz", "--json")
    note = (
        "the images have bytes of at most 15, and those in training reached 191 or more: if yours have "
        "another range than 0..255, give whole numbers 0..255 or floats in 0..1."
    )
    assert answer.err == f"note: {note}\n"
    assert json.loads(answer.out)["notes"] == [note]
    assert unskew("predict", "run", "whole.npz").err == ""
    assert unskew("predict", "run", "one.npz").err == ""  # one image may be dark
    dark = np.random.default_rng(0).integers(0, 17, (40, 1, 8, 8), np.uint8)
    np.savez("dark.npz", x=dark, y=np.arange(40) % 2)
    data = ["--dataset", "npz:dark.npz", "--skew", "iid", "--clients", "2"]
    assert unskew("run", *data, *BRIEF, "--out", "dark").code == 0
    assert unskew("predict", "dark", "dark.npz").err == ""


NEWS = [
    (1 + at % 2, f"{('Striker', 'Shares')[at % 2]} {at}", ("goals match team", "market bank rate")[at % 2])
    for at in range(24)
]


def test_texts_are_predicted_from_lines_and_tables(unskew, tmp_path: Path) -> None:
    news = [*NEWS, (3, "Bank", "rates"), (4, "Chip", "code")] * 2
    layouts.write_ag_news(tmp_path / "ag_news", news, news)
    data = ["--dataset", "ag_news:length=8", "--data", ".", "--skew", "iid", "--clients", "2"]
    assert unskew("run", *data, *BRIEF, "--lr", "0.5", "--set", "budget.epochs=5", "--out", "run").code == 0
    dataset = toolkit.load("ag_news:length=8", tmp_path)
    model, texts = load_model("run"), [f"{title} {text}" for _, title, text in news]
    summary = json.loads(Path("run/summary.json").read_text())
    assert confusion(model, dataset, texts).tolist() == summary["confusion"]
    Path("new.csv").write_text("description,title\n" + "".join(f"{b},{a}\n" for _, a, b in news[:5]))
    Path("new.txt").write_text("".join(f"{text}\n" for text in texts[:5]))
    Path("text.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts[:5]))
    by_file = [rows_of(unskew("predict", "run", name).out) for name in ("new.csv", "text.csv", "new.txt")]
    for found in by_file:
        assert [row["class"] for row in found] == model.predict(texts[:5])
    answer = unskew("export", "run", "--to", "onnx", "--out", "news.onnx", "--data", ".", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["difference"] < 1e-5
    Path("other.csv").write_text("body\nx\n")
    assert "lacks the column 'text', or 'title' and" in unskew("predict", "run", "other.csv").err


# ---- For other programs


def onnx_logits(path: Path, inputs: NDArray[Any]) -> NDArray[np.float32]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits: NDArray[np.float32] = session.run(["logits"], {"input": inputs})[0]
    return logits


def test_onnx_has_preprocessing_and_classes_inside(unskew, small: Federation, tmp_path: Path) -> None:
    train(Trial(small, "mlp-small", budget=ONE, engine="loop"), toolkit.methods.fedgela()).save("run")
    answer = unskew("export", "run", "--to", "onnx", "--out", "m.onnx")
    assert answer.code == 0, answer.err
    assert "largest difference from the original on 256 samples" in answer.err
    x = small.dataset.test.inputs
    model = load_model("run")
    for n in (1, 7):
        expected = model(x[:n]).numpy()
        assert onnx_logits(Path("m.onnx"), x[:n].numpy()) == pytest.approx(expected, abs=1e-5)
    import onnx

    told = {each.key: each.value for each in onnx.load("m.onnx").metadata_props}
    assert json.loads(told["classes"]) == list("0123456789")


def test_a_tables_columns_are_inside_what_is_exported(unskew, tmp_path: Path) -> None:
    data = ["--dataset", "heart-disease", "--skew", "natural"]
    assert unskew("run", *data, *BRIEF, "--out", "run").code == 0
    model = load_model("run")
    rows = patients()[:50]
    numbers = np.array([[float(cell) if cell != "?" else np.nan for cell in row[:13]] for row in rows])
    numbers[:3, 3] = 0
    expected = model(numbers).numpy()
    answer = unskew("export", "run", "--to", "onnx", "--out", "m.onnx")
    assert answer.code == 0, answer.err
    assert onnx_logits(Path("m.onnx"), numbers) == pytest.approx(expected, abs=1e-5)


def test_numbers_that_are_missing_are_inside_what_is_exported(unskew, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    draw = np.random.default_rng(0)
    rows = [[f"{x:.3f}" if draw.random() > 0.2 else "" for x in draw.normal(size=3)] for _ in range(80)]
    lines = ["a,b,c,label", *(",".join([*row, f"k{n % 2}"]) for n, row in enumerate(rows))]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    for missing in ("fill", "column"):
        dataset = f"csv:all.csv,label=label,missing={missing}"
        assert unskew("run", "--dataset", dataset, "--clients", "2", *BRIEF, "--out", missing).code == 0
        answer = unskew("export", missing, "--to", "onnx", "--out", f"{missing}.onnx")
        assert answer.code == 0, answer.err


@pytest.mark.parametrize(("method", "client"), [("fedconcat", None), ("local-only", "1")])
def test_models_that_methods_stack_are_exported(
    unskew, small: Federation, tmp_path: Path, method: str, client: str | None
) -> None:
    budget = Budget(rounds=2, epochs=1)
    train(Trial(small, "mlp-small", budget=budget, engine="loop"), METHODS[method]()).save("run")
    whose = [] if client is None else ["--client", client]
    assert unskew("export", "run", "--to", "torch-export", "--out", "m.pt2", *whose).code == 0
    x, model = small.dataset.test.inputs[:9], load_model("run", client=client)
    logits, probabilities = torch.export.load("m.pt2").module()(x)
    assert logits.numpy() == pytest.approx(model(x).numpy(), abs=1e-6)
    assert probabilities.numpy() == pytest.approx(model.probabilities(x).numpy(), abs=1e-6)


def test_an_export_that_differs_is_not_written(
    unskew, small: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(Trial(small, "mlp-small", budget=ONE, engine="loop")).save("run")
    monkeypatch.setattr("unskew.export.LARGEST_DIFFERENCE", -1.0)
    answer = unskew("export", "run", "--to", "torch-export", "--out", "m.pt2")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "differs from the original by" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


# ---- What was trained in Python


def test_a_result_becomes_the_run_folder_that_the_command_writes(unskew, tmp_path: Path) -> None:
    digits = toolkit.load("digits")
    federation = toolkit.federate(digits, "dirichlet:0.3", clients=3, seed=2)
    trial = Trial(federation, "mlp-small", budget=ONE, seed=2, engine="loop")
    result = train(trial, toolkit.methods.fedprox(mu=0.5) + toolkit.methods.fedexp())
    result.save("mine")
    skew = ["--skew", "dirichlet:0.3", "--clients", "3", "--seed", "2"]
    assert unskew("run", "--method", "fedprox:mu=0.5+fedexp", *skew, *BRIEF, "--out", "theirs").code == 0
    assert Path("mine/experiment.toml").read_text() == Path("theirs/experiment.toml").read_text()
    for name in ("model.safetensors", "model.json", "partition.json"):
        assert Path("mine", name).read_bytes() == Path("theirs", name).read_bytes()
    mine, theirs = (json.loads(Path(folder, "summary.json").read_text()) for folder in ("mine", "theirs"))
    for name in ("seconds", "time", "run_dir"):
        mine.pop(name), theirs.pop(name)
    assert mine == theirs
    assert {path.name for path in Path("mine").iterdir()} == {path.name for path in Path("theirs").iterdir()}
    with pytest.raises(UserError, match="the folder mine holds a run already"):
        result.save("mine")


def test_a_result_of_ones_own_data_model_and_method_is_read_as_any_other(unskew, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.array(["cat", "dog"] * 30)
    table = from_arrays(rng.normal(size=(60, 3)) + (labels == "cat")[:, None], labels, name="pets")
    federation = Federation(
        table, toolkit.data.partition_of([range(20), range(20, 48)], table, recipe="halves")
    )
    trial = Trial(federation, lambda: nn.Linear(3, 2), budget=ONE, engine="loop")
    for name, method in (("a", Method(notes=("mine",))), ("b", toolkit.methods.fedlc())):
        train(trial, method).save(f"both/{name}", method="lab")
    answer = unskew("table", "both")
    assert answer.code == 0, answer.err
    assert "lab" in answer.out
    assert "fedlc" in answer.out
    assert unskew("report", "both", "--out", "page.html").code == 0
    Path("net.py").write_text("from torch import nn\n\n\ndef Net():\n    return nn.Linear(3, 2)\n")
    np.savez("x.npz", x=table.test.inputs.numpy())
    assert "give it yourself, with --model" in unskew("predict", "both/a", "x.npz").err
    answer = unskew("predict", "both/a", "x.npz", "--model", "net.py:Net")
    assert (answer.code, len(rows_of(answer.out))) == (0, len(table.test))
    answer = unskew("export", "both/a", "--to", "torch-export", "--out", "m.pt2", "--model", "net.py:Net")
    assert "give samples to check it on, with --check" in answer.err


def test_a_result_without_a_trial_says_so(small: Federation, tmp_path: Path) -> None:
    from dataclasses import replace

    result: Result = train(Trial(small, "mlp-small", budget=ONE, engine="loop"))
    with pytest.raises(UserError, match=r"save what unskew\.train returned"):
        replace(result, trial=None).save(tmp_path / "run")


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a run that has not ended": (
        lambda run: (run / "model.safetensors").unlink(),
        "end it with unskew resume",
    ),
    "a run of an older version": (
        lambda run: __import__("safetensors.torch").torch.save_file(
            {"a": torch.zeros(1)}, run / "model.safetensors"
        ),
        "tells nothing of its model, as those of older versions",
    ),
    "no description": (lambda run: (run / "model.json").unlink(), "model.json is damaged"),
    "another client": (lambda run: None, "holds one model, for all clients: leave client out"),
    "a model": (lambda run: None, r"is one of unskew's \(mlp-small\): leave model out"),
}
WRONG: dict[str, dict[str, Any]] = {"another client": {"client": 1}, "a model": {"model": nn.Flatten}}
"""The wrong arguments of `load_model` among them."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_sentence(name: str, small: Federation, tmp_path: Path) -> None:
    run = train(Trial(small, "mlp-small", budget=ONE, engine="loop")).save(tmp_path / "run")
    spoil, says = MISTAKES[name]
    spoil(run)
    with pytest.raises(UserError, match=says):
        load_model(run, **WRONG.get(name, {}))
