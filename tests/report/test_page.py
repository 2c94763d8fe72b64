"""The page about runs: what it says, and that a browser shows it from disk, alone."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from invented import made

from unskew import record
from unskew.report.answer import answer
from unskew.report.differences import points, verdict
from unskew.report.grouping import by_method
from unskew.report.page import page_data, render, write_page
from unskew.report.read import SavedRun, read_run, read_runs
from unskew.report.standings import TITLES
from unskew.report.table import tabulate
from unskew.report.table_text import to_csv, to_markdown

HOSTILE = "</script><img src=x onerror=alert(1)>"


# What the page is made from


def test_methods_are_marked_and_compared_on_the_seeds_that_all_have():
    runs = [made("fedavg", 1, 0.8), made("fedavg", 2, 0.6), made("pkd", 1, 0.75)]
    rows = page_data(runs)["blocks"][0]["rows"]
    assert not any(best for row in rows for _, best, _ in row["cells"])
    assert rows[1]["against"][0] == "−5.0"


def test_runs_under_different_conditions_stand_in_blocks_of_their_own():
    mild = [made("fedavg", skew="dirichlet:0.5"), made("fedvls", accuracy=0.5, skew="dirichlet:0.5")]
    data = page_data([made("fedavg"), made("fedvls", accuracy=0.7), *mild])
    assert [block["title"][:2] for block in data["blocks"]] == ["A:", "B:"]
    first, second = data["blocks"]
    assert "fedvls ends at 70.0" in first["sentence"]
    assert "fedavg ends at 60.0" in second["sentence"]
    titles = [method["title"] for method in data["methods"]]
    assert titles == ["fedavg (A)", "fedvls (A)", "fedavg (B)", "fedvls (B)"]
    assert [block["short"] for block in data["blocks"]] == ["A: dirichlet:0.05", "B: dirichlet:0.5"]
    assert data["methods"][0]["look"] == data["methods"][2]["look"] != data["methods"][1]["look"]


def test_what_was_tuned_for_each_method_is_no_other_condition():
    def with_lr(run, lr):
        return replace(run, experiment=run.experiment | {"budget": {**run.experiment["budget"], "lr": lr}})

    tuned = [with_lr(made("fedavg"), 0.1), with_lr(made("fedvls", accuracy=0.7), 0.5)]
    [block] = page_data(tuned)["blocks"]
    assert "fedvls ends at 70.0" in block["sentence"]
    assert "budget.lr was chosen for each method: 0.1 for fedavg, 0.5 for fedvls." in block["notes"]
    twice = page_data([*tuned, with_lr(made("fedavg", accuracy=0.5), 0.5)])
    assert len(twice["blocks"]) == 2  # of one method, it is a condition


def test_the_best_is_marked_and_runs_under_way_are_shown_in_the_round_that_all_have():
    slow = [made("fedavg", s, 0.6) for s in (1, 2, 3)]
    done = page_data([*slow, *(made("fedvls", s, 0.68 + s / 100) for s in (1, 2, 3))])
    cells = [row["cells"][0] for row in done["blocks"][0]["rows"]]
    assert [cell[:2] for cell in cells] == [["60.0 ± 0.0", False], ["70.0 ± 1.0", True]]
    ahead = [made("fedavg", s, 0.6, rounds=5, done=5) for s in (1, 2, 3)]
    for run in ahead:
        run.rounds[-1] = replace(run.rounds[-1], accuracy=0.99)
    going = page_data([*ahead, *(made("fedvls", s, 0.68 + s / 100, rounds=5, done=2) for s in (1, 2, 3))])
    assert going["blocks"][0]["heads"][2]["title"] == "mean last 2"
    rows = going["blocks"][0]["rows"]
    assert [row["cells"][0][0] for row in rows] == ["60.0 ± 0.0", "70.0 ± 1.0"]
    assert rows[1]["against"][0].startswith("+10.0 (")


def test_stars_are_those_of_the_table_and_runs_that_never_began_are_told_of():
    runs = [made("fedavg", s, 0.6 + s / 1000) for s in (1, 2, 3)]
    runs += [made("fedvls", s, 0.4 + s / 500) for s in (1, 2, 3)]
    data = page_data(runs, coming=[3, 3])
    assert [row["cells"][0][0] for row in data["blocks"][0]["rows"]] == ["60.2 ± 0.1", "40.4 ± 0.2*"]
    assert "40.4 ± 0.2\\*" in to_markdown(tabulate(runs))
    assert data["notes"] == ["Of 8 runs 2 have not begun."]


def test_the_time_left_follows_from_the_pace_of_the_rounds():
    progress = page_data([made(rounds=10, done=4), made(seed=2, rounds=10, done=0)])["progress"]
    assert (progress["done"], progress["total"], progress["finished"]) == (4, 20, False)
    assert progress["left"] == 0.5 * 16
    assert page_data([made(done=0)])["progress"]["left"] is None
    assert page_data([made()])["progress"]["finished"] is True
    compare = page_data([made(rounds=10, done=10)], coming=[10, 10])["progress"]
    assert (compare["runs"], compare["done"], compare["total"]) == (3, 10, 30)
    assert compare["left"] == 0.5 * 20
    assert compare["finished"] is False


def test_a_run_that_failed_is_told_of_and_not_waited_for():
    failure = record.Failure(error="ValueError: no", notes=["Client 3 failed."], traceback="")
    data = page_data([made(), replace(made("fedvls", rounds=10, done=4), failure=failure)])
    assert data["notes"] == ["fedvls seed 1 failed: ValueError: no. Client 3 failed."]
    progress = data["progress"]
    assert (progress["done"], progress["total"], progress["failed"]) == (7, 7, 1)
    assert (progress["left"], progress["finished"]) == (0, True)


def test_numbers_that_would_make_the_page_too_large_are_thinned_and_the_last_round_stays():
    run = made(rounds=1000, done=1000)
    many = 1000
    rounds = [replace(line, class_accuracy=[0.5] * many) for line in run.rounds]
    run = replace(
        run,
        rounds=rounds,
        classes=tuple(map(str, range(many))),
        counts=np.ones((2, many), dtype=np.int64),
        summary=None,
    )
    shown = page_data([run])["runs"][0]
    assert len(shown["rounds"]["by_class"]) < 1000
    assert shown["rounds"]["by_class"][-1] == 1000
    assert len(shown["series"]["accuracy"][1]) == 1000


def test_a_mean_over_fewer_than_ten_rounds_is_called_what_it_is():
    def title(*runs):
        return next(h["title"] for h in page_data(runs)["blocks"][0]["heads"] if h["key"] == "mean_last_10")

    assert title(made(rounds=3)) == "mean last 3"
    assert title(made(rounds=12, done=12)) == "mean last 10"


def test_what_was_spent_has_all_stages_and_ends_at_the_sums_of_the_run():
    run = made(rounds=3)  # a second and a half, 6000 bytes and 3 U in its rounds
    staged = replace(run.summary, seconds=4.0, traffic=record.TrafficRecord(5000, 5000), cost=10.0)
    data = page_data([replace(run, summary=staged)])
    assert data["blocks"][0]["rows"][0]["seconds"] == 4
    spent = data["runs"][0]["spent"]
    assert spent["time"] == [3, 3.5, 4]
    assert spent["traffic"] == [0.006, 0.008, 0.01]
    assert spent["cost"] == [8, 9, 10]
    whole = page_data([replace(run, summary=replace(staged, passes=None))])["runs"][0]["spent"]
    assert whole["cost"] == [None, None, 10]  # what single rounds cost is not recorded


# The command


def test_the_command_writes_one_file_and_keeps_what_is_there(unskew, write_run):
    runs = [str(write_run("a")), str(write_run("b", method="fedvls"))]
    answer = unskew("report", *runs, "--out", "page.html")
    assert answer.code == 0
    assert answer.out.startswith("written: page.html")
    text = Path("page.html").read_text()
    assert text.count("<!doctype html>") == 1
    again = unskew("report", *runs, "--out", "page.html")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "is there already" in again.err
    missing = unskew("report", "nowhere", "--out", "page.html")
    assert "there is no run folder nowhere" in missing.err
    assert Path("page.html").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "there is no run folder nowhere"),
        (("{run}", "--out", "page.pdf"), "end its name in .html"),
        (("{run}", "--out", "{run}/summary.json/page.html"), "cannot write the page"),
        ((), "is missing"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(unskew, write_run, arguments, words):
    run = write_run()
    answer = unskew("report", *(each.format(run=run) for each in arguments))
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert words in answer.err


# In a browser


CALM = {"reduced_motion": "reduce"}
"""The page jumps to a section. While it scrolls there smoothly its menu moves, away from under a click."""


@pytest.fixture
def open_page(chromium, tmp_path):
    """Opens the page about runs from disk. What it complains of or asks the network for fails the test."""
    contexts, trouble, asked = [], [], []

    def show(runs: list[SavedRun], width: int = 1280, link: str = "", **options):
        file = tmp_path / f"page{len(contexts)}.html"
        write_page(runs, file)
        context = chromium.new_context(viewport={"width": width, "height": 900}, **CALM, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri() + link)
        page.wait_for_selector("#curve .main-svg")
        return page

    yield show
    for context in contexts:
        context.close()
    assert trouble == []
    loaded = [url for url in asked if not url.startswith(("blob:", "data:"))]
    assert all(url.startswith("file:") and url.partition("#")[0].endswith(".html") for url in loaded)
    assert len(loaded) == len(contexts)


@pytest.fixture(scope="module")
def two_methods(write_at, tmp_path_factory) -> list[SavedRun]:
    folder = tmp_path_factory.mktemp("two")
    for method in ("fedavg", "fedvls"):
        for seed in (1, 2):
            write_at(folder / f"{method}-{seed}", method=method, seed=seed, probe=4, rounds=8)
    return read_runs(folder / f"{method}-{seed}" for method in ("fedavg", "fedvls") for seed in (1, 2))


@pytest.fixture(scope="module")
def opened(chromium, two_methods, tmp_path_factory):
    """Open one page for many tests, since opening it takes longer than most of them."""
    file, trouble = tmp_path_factory.mktemp("page") / "page.html", []
    write_page(two_methods, file)
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, has_touch=True, **CALM)
    page = context.new_page()
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda asked: trouble.append(asked.url) if asked.url.startswith("http") else None)
    page.goto(file.as_uri())
    page.wait_for_selector("#curve .main-svg")
    yield page, trouble
    context.close()


@pytest.fixture
def page(opened):
    """Give the page about two methods, with nothing chosen; an error or a network request fails the test."""
    page, trouble = opened
    resize(page, 1280, 900)
    page.emulate_media(media="screen", color_scheme="light")
    page.evaluate("() => { location.hash = ''; }")
    page.wait_for_function("document.getElementById('metric').value === 'accuracy'")
    yield page
    assert trouble == []


def resize(page, width: int, height: int) -> None:
    """Change the size of the window, and wait until the charts have been drawn for it."""
    if page.viewport_size == {"width": width, "height": height}:
        return
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function(f"window.innerWidth === {width}")
    page.wait_for_timeout(400)  # charts wait for 200 ms without another change
    page.wait_for_function(f"document.querySelector('#curve .main-svg').clientWidth <= {width}")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def curves(page) -> list[dict]:
    """Return name, rounds and values of the lines that are drawn."""
    return page.evaluate(
        "() => document.getElementById('curve').data.filter(t => t.hoverinfo !== 'skip')"
        ".map(t => ({name: t.meta, axis: t.xaxis, x: Array.from(t.x), y: Array.from(t.y), text: t.text}))"
    )


def chart(page, id: str):
    """Return the traces of a chart."""
    return page.evaluate(
        "id => JSON.parse(JSON.stringify(document.getElementById(id).data.map(t => ({...t, "
        "z: t.z && t.z.map(row => Array.from(row))}))))",
        id,
    )


def saved(page, button: str) -> tuple[str, bytes]:
    """Return name and content of the file that a button downloads."""
    with page.expect_download() as found:
        page.click(button)
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


def mean_of(runs: list[SavedRun], label: str, value) -> list[float]:
    each = [[100 * value(line) for line in run.rounds] for run in runs if run.label == label]
    return np.mean(each, axis=0).tolist()


def test_the_page_opens_from_disk_answers_first_and_tells_values_on_hover(page, two_methods):
    data = page_data(two_methods)
    assert page.text_content("#answers .answer") == data["blocks"][0]["sentence"]
    rows = page.locator("#tables table").first.locator("tbody tr")
    assert rows.count() == 2
    assert rows.nth(0).locator("th").inner_text() == "fedavg"
    for row, told in zip(rows.all(), data["blocks"][0]["rows"], strict=True):
        assert told["cells"][0][0] in row.inner_text()
    best = [best for row in data["blocks"][0]["rows"] for _, best, _ in row["cells"]]
    assert page.locator("#tables td.best").count() == sum(best)
    assert page.text_content("#experiment") == (two_methods[0].path / "experiment.toml").read_text()
    assert "device name" in page.inner_text("#environment")
    page.locator("#curve").scroll_into_view_if_needed()
    box = page.locator("#curve .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#curve .hoverlayer .legend")
    assert "fedavg: " in page.text_content("#curve .hoverlayer")


def test_the_measure_methods_and_seeds_of_the_curves_can_be_chosen(page, two_methods):
    assert [line["name"] for line in curves(page)] == ["fedavg", "fedvls"]
    expected = mean_of(two_methods, "fedvls", lambda line: line.accuracy)
    assert curves(page)[1]["y"] == pytest.approx(expected, abs=0.01)

    page.select_option("#metric", "class:dress")
    expected = mean_of(two_methods, "fedavg", lambda line: line.class_accuracy[3])
    assert curves(page)[0]["y"] == pytest.approx(expected, abs=0.01)
    page.select_option("#metric", "vacant")
    expected = mean_of(two_methods, "fedavg", lambda line: line.groups.vacant)
    assert curves(page)[0]["y"] == pytest.approx(expected, abs=0.01)
    page.select_option("#metric", "drift")
    assert curves(page)[0]["x"] == [4, 8]
    page.select_option("#metric", "worst")

    page.get_by_label("fedavg", exact=True).uncheck()
    assert [line["name"] for line in curves(page)] == ["fedvls"]
    page.select_option("#seeds", "lines")
    assert [line["name"] for line in curves(page)] == ["fedvls", "fedvls"]
    page.click("#none")
    assert curves(page) == []
    assert "No method is chosen." in page.inner_text("#curve-note")
    page.click("#all")
    assert len(curves(page)) == 4


def test_clients_that_keep_their_label_counts_are_no_section(open_page, write_run):
    folder = write_run("fedavg", rounds=3)
    file = folder / "partition.json"
    told = json.loads(file.read_text())
    named = [f"site {n}" for n in range(len(told["counts"]))]
    file.write_text(json.dumps(told | {"counts": [], "names": named}))
    page = open_page(read_runs([folder]))
    assert page.is_hidden("#clients")
    assert page.is_hidden("#clients-link")
    assert page.is_visible("#confusion .main-svg >> nth=0")
    assert "Label counts stay with" in page.inner_text("body")


def test_a_click_in_the_picture_or_a_key_in_the_list_picks_a_client(page, two_methods):
    run = two_methods[0]

    def shown() -> tuple[str, list[float]]:
        held = page.evaluate("() => Array.from(document.getElementById('holds').data[0].x)")
        return page.inner_text("#client-title"), sorted(held, reverse=True)

    def holds(client: int) -> list[int]:
        return sorted(run.counts[client].tolist(), reverse=True)

    assert shown() == ("Client 0", holds(0))
    page.locator("#partition").scroll_into_view_if_needed()
    box = page.locator("#partition .nsewdrag").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * (3.5 / len(run.counts)))
    page.wait_for_function("document.getElementById('client-title').textContent === 'Client 3'")
    assert shown() == ("Client 3", holds(3))
    assert page.input_value("#client") == "3"

    page.focus("#client")
    page.keyboard.press("ArrowDown")
    assert shown() == ("Client 4", holds(4))
    page.click("#previous")
    page.click("#previous")
    assert shown() == ("Client 2", holds(2))

    probe = next(each for each in run.probes if each.round == 4)
    mine = next(each for each in probe.clients if each.client == 2)
    assert page.input_value("#round") == "8"
    page.select_option("#round", "4")
    vacant = page.locator("#groups tbody tr").nth(2).locator("td").all_inner_texts()
    stages = mine.groups.vacant
    assert vacant[:2] == [f"{100 * stages.before:.1f}", f"{100 * stages.after:.1f}"]
    assert vacant[2].startswith("−")
    after = page.evaluate("() => document.getElementById('effect').data.find(t => t.name === 'updated').x")
    assert sorted(after) == pytest.approx(sorted(100 * value for value in mine.after), abs=0.051)


def test_what_a_run_does_not_have_is_said_and_how_to_get_it(open_page, write_run):
    ended, going = write_run("ended", untested=[2]), write_run("going", method="fedvls", done=3)
    page = open_page(read_runs([ended, going]))
    confusion = np.array(json.loads((ended / "summary.json").read_text())["confusion"])
    drawn = page.evaluate("() => document.getElementById('matrix').data[0].z.map(row => Array.from(row))")
    assert drawn[2] == [None] * 10  # no test sample, no share
    tested = [row for row in range(10) if row != 2]
    shares = 100 * confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    assert np.allclose(np.array(drawn)[tested].astype(float), shares[tested])
    page.select_option("#confusion-method", "fedvls")
    assert "when the run ends" in page.inner_text("#confusion-note")
    assert page.locator("#matrix").is_hidden()
    page.select_option("#method", "fedvls")
    assert "--probe every=10" in page.inner_text("#probe-note")
    assert page.locator("#effect-figure").is_hidden()
    assert page.locator("#holds .main-svg").first.is_visible()


def test_text_from_runs_is_text(open_page, write_run):
    name = "</script><script>alert(2)</script>%{x}<b>bold</b>\u2028"
    classes = [HOSTILE, "<a href='javascript:alert(3)'>link</a>", "&lt;b&gt;", name]
    run = read_run(write_run(classes=classes, probe=2, rounds=4, data__name="<img src=x onerror=alert(4)>"))
    run = replace(run, label=HOSTILE, summary=replace(run.summary, notes=[HOSTILE]))
    assert HOSTILE not in render(page_data([run]))
    page = open_page([run, replace(run, label="fedavg", path=run.path / "2")])
    page.select_option("#metric", f"class:{HOSTILE}")
    page.select_option("#seeds", "lines")
    page.locator("#partition").hover()
    page.click("#next")
    assert HOSTILE in page.inner_text("#tables")
    assert HOSTILE in page.inner_text("#notes")
    assert page.locator("img").count() == 0
    assert page.locator("main a, main b").count() == 0
    drawn = page.locator("#holds .ytick text").all_text_contents()
    assert "&lt;b&gt;" in drawn  # as it is written, not as HTML would have it


def test_a_phone_scrolls_down_only_and_the_page_is_dark_at_night(open_page, two_methods):
    long = replace(two_methods[0], label="fedprox:" + "mu=0.1,very_long_hyperparameter=12345," * 4)
    page = open_page([*two_methods, replace(long, path=long.path / "2")], 390)
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        page.emulate_media(color_scheme=scheme)
        page.select_option("#round", "4")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        drawn = page.locator("#curve .main-svg").first.evaluate("svg => svg.style.backgroundColor")
        assert drawn == paper


def test_twenty_long_runs_of_many_clients_fit_and_open(open_page, write_run, tmp_path):
    names = [f"class {number}" for number in range(100)]
    run = read_run(write_run(clients=100, rounds=200, probe=10, classes=names))
    runs = [
        replace(
            run,
            path=Path(f"{method}-{seed}"),
            label=method,
            seed=seed,
            experiment=run.experiment | {"seed": seed},
        )
        for method in ("fedavg", "fedprox", "fedlc", "fedntd", "fedvls")
        for seed in range(1, 5)
    ]
    page = open_page(runs)
    assert (tmp_path / "page0.html").stat().st_size < 10_000_000
    assert page.locator("#tables tbody").first.locator("tr").count() == 5
    page.select_option("#client", "99")
    assert page.inner_text("#client-title") == "Client 99"


def test_sites_have_a_table_and_pictures_and_their_names_are_only_text(open_page, write_run):
    sites = ("north", HOSTILE, "south")
    runs = read_runs(
        [
            write_run(f"{method}-{seed}", method=method, seed=seed, rounds=3, sites=sites)
            for method in ("fedavg", "fedvls")
            for seed in (1, 2)
        ]
    )
    page = open_page(runs)
    assert page.is_visible("#sites-link")
    sections = [each.get_attribute("id") for each in page.locator("main > section").all()]
    assert sections.index("sites") < sections.index("methods")
    rows = page.locator("#site-tables tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == list(sites)
    each = [run.summary.sites.spread for run in runs if run.label == "fedavg"]
    mean = np.mean([spread.accuracy["south"] for spread in each])
    assert rows.nth(2).locator("td").nth(2).inner_text().startswith(f"{100 * mean:.1f} ± ")
    south = next(site for site in runs[0].summary.sites.each if site.name == "south")
    lacks = [name for name, n in zip(runs[0].classes, south.train, strict=True) if not n]
    assert lacks[0] in rows.nth(2).inner_text()
    worst = page.locator("#site-tables tfoot tr", has_text="worst site").locator("td").nth(2).inner_text()
    assert worst.startswith(f"{100 * np.mean([spread.worst for spread in each]):.1f}")
    dots = page.evaluate(
        "() => document.getElementById('site-dots').data.slice(1).map(t => [t.name, Array.from(t.x)])"
    )
    assert [name for name, _ in dots] == ["fedavg", "fedvls"]
    assert dots[0][1][2] == pytest.approx(100 * mean, abs=0.01)
    places = [x for _, found in dots for x in found]
    low, high = page.evaluate("() => document.getElementById('site-dots').layout.xaxis.range")
    assert low <= min(places) <= max(places) <= high
    assert high - low < 1.1 * (max(places) - min(places) + 22)  # differences fill the width
    by_name = {name: np.mean([spread.accuracy[name] for spread in each]) for name in sites}
    for order in (
        sorted(sites, key=lambda name: -by_name[name]),
        sorted(sites, key=by_name.get),
        list(sites),
    ):
        page.locator("#site-tables button.sort", has_text="fedavg").click()
        assert rows.locator("th").all_inner_texts() == order
    page.select_option("#site-measure", "macro")
    each = [site for run in runs[:2] for site in run.summary.sites.each if site.name == "south"]
    mean = np.mean([site.balanced_accuracy for site in each])
    assert rows.nth(2).locator("td").nth(2).inner_text().startswith(f"{100 * mean:.1f} ± ")
    page.select_option("#site-method", "fedvls")
    shown = page.evaluate("() => document.getElementById('site-classes').data[0].z.map(r => Array.from(r))")
    told = [[100 * value for value in site.class_accuracy] for site in runs[2].summary.sites.each]
    assert np.array(shown) == pytest.approx(np.array(told), abs=0.01)
    page.select_option("#metric", "site:south")
    expected = mean_of(runs, "fedavg", lambda line: line.sites.accuracy["south"])
    assert curves(page)[0]["y"] == pytest.approx(expected, abs=0.01)
    page.select_option("#metric", "worst-site")
    assert len(curves(page)) == 2
    assert page.text_content("#client-title") == "north"
    assert page.locator("img").count() == 0


def test_without_sites_there_is_no_such_section(page):
    assert not page.is_visible("#sites")
    assert not page.is_visible("#sites-link")


def test_everything_can_be_saved_without_a_network(page, two_methods):
    name, table = saved(page, "#tables [data-save=csv]")
    assert name == "unskew-methods.csv"
    assert table.decode() == to_csv(tabulate(two_methods))
    page.select_option("#metric", "worst")
    name, numbers = saved(page, "#curves [data-save=csv]")
    assert name == "unskew-curve-worst.csv"
    rows = list(csv.DictReader(io.StringIO(numbers.decode())))
    last = [row for row in rows if row["round"] == "8"]
    expected = [
        mean_of(two_methods, method, lambda line: line.min_class)[-1] for method in ("fedavg", "fedvls")
    ]
    assert [100 * float(row["worst"]) for row in last] == pytest.approx(expected, abs=1e-6)
    assert {row["seeds"] for row in rows} == {"2"}
    name, image = saved(page, "#curves [data-save=png]")
    assert (name, image[:4]) == ("unskew-curve-worst.png", b"\x89PNG")
    name, image = saved(page, "#curves [data-save=svg]")
    assert name == "unskew-curve-worst.svg"
    text = image.decode()
    assert text.startswith("<svg")
    assert "fedvls" in text  # its legend, which is beside the chart on the page
    page.select_option("#setup-method", "fedvls")
    name, experiment = saved(page, "#save-experiment")
    assert name == "unskew-fedvls-seed-1.toml"
    assert experiment.decode() == (two_methods[2].path / "experiment.toml").read_text()
    charts = [each.get_attribute("id") for each in page.locator("main .chart:visible").all()]
    assert len(charts) == len(page.locator("main figure:visible .saves").all()) >= 8


def test_tables_are_sorted_and_explained_by_mouse_finger_and_keys(page, two_methods):
    table = page.locator("#tables table").first
    head = table.locator("th", has_text="vacant")
    names = lambda: table.locator("tbody th").all_inner_texts()  # noqa: E731
    worth = {
        name: np.mean([run.final.groups.vacant for run in two_methods if run.label == name])
        for name in ("fedavg", "fedvls")
    }
    head.locator("button.sort").click()
    assert (head.get_attribute("aria-sort"), names()) == (
        "descending",
        sorted(worth, key=lambda n: -worth[n]),
    )
    page.keyboard.press("Enter")  # the head has kept the focus
    assert (head.get_attribute("aria-sort"), names()) == ("ascending", sorted(worth, key=lambda n: worth[n]))
    page.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), names()) == ("none", ["fedavg", "fedvls"])

    side = page.locator("#side-table table")
    side.locator("button.sort", has_text="method").click()
    page.keyboard.press("Enter")
    assert side.locator("tbody th").all_inner_texts() == ["fedvls", "fedavg"]

    help = page.locator("#help")
    head.locator("button.help").tap()
    assert "classes of which a client has nothing" in help.inner_text()
    page.locator("h1").tap()
    assert help.is_hidden()
    head.locator("button.help").focus()
    page.keyboard.press("Enter")
    assert help.is_visible()
    page.keyboard.press("Escape")
    assert help.is_hidden()
    resize(page, 390, 844)
    for button in (page.locator("#tables button.help").first, head.locator("button.help")):
        button.click()
        help.wait_for(state="visible")
        box = help.bounding_box()
        assert box["x"] >= 8
        assert box["x"] + box["width"] <= 382
    page.keyboard.press("Escape")
    assert head.locator("button.help").get_attribute("aria-expanded") == "false"


def test_a_copied_link_opens_the_same_view_and_back_leads_to_the_section_before(page, open_page, two_methods):
    for list_, value in (
        ("metric", "class:dress"), ("x-axis", "traffic"), ("smooth", "3"), ("seeds", "lines"),
        ("method", "fedvls"), ("seed", "2"), ("client", "4"), ("round", "4"),
        ("confusion-method", "fedvls"), ("confusion-seed", "1"), ("against", "fedavg"),
        ("class-how", "difference"),
    ):  # fmt: skip
        page.select_option(f"#{list_}", value)
    page.get_by_label("fedavg", exact=True).uncheck()
    page.locator("#tables button.sort", has_text="minority").click()
    page.click("nav a[href='#clients']")
    page.click("nav a[href='#confusion']")
    view = """() => ({
        lists: [...document.querySelectorAll('main select')].map(each => each.value),
        heads: [...document.querySelectorAll('th')].map(each => each.getAttribute('aria-sort')),
        boxes: [...document.querySelectorAll('input')].map(each => each.checked),
        texts: [...document.querySelectorAll('figcaption')].map(each => each.textContent)
    })"""
    there = page.evaluate(view)
    copied = page.evaluate("location.hash")
    assert copied.startswith("#confusion?")
    again = open_page(two_methods, link=copied)
    assert again.evaluate(view) == there
    assert again.evaluate("window.scrollY") > 1000
    assert again.evaluate("location.hash") == copied

    page.go_back()
    assert page.evaluate("location.hash").startswith("#clients?")
    assert page.evaluate(view) == there
    page.goto(page.url.partition("#")[0] + "#curves?metric=loss")  # another link, put into the address bar
    assert page.input_value("#metric") == "loss"
    assert page.input_value("#confusion-method") == "fedavg"


def test_conditions_have_a_panel_each_and_can_be_filtered(open_page):
    runs = [
        made(label, seed, 0.5 + seed / 20, skew=skew, rounds=4, done=4)
        for skew in ("dirichlet:0.05", "dirichlet:0.5", "classes:1")
        for label in ("fedavg", "fedprox", "pkd")
        for seed in (1, 2)
    ]
    # A run stops early, one method's rounds differ in what they cost, and one seed is far from the other.
    far = [made("fedprox", s, a, skew="dirichlet:0.05", rounds=4, done=4) for s, a in ((1, 0.99), (2, 0.05))]
    runs[2:4] = [replace(far[0], rounds=far[0].rounds[:2]), far[1]]
    runs[4] = replace(runs[4], summary=replace(runs[4].summary, passes=None, cost=9.0))
    page = open_page(runs)
    drawn = curves(page)
    assert {line["axis"] for line in drawn} == {"x", "x2", "x3"}
    titles = page.evaluate("() => document.getElementById('curve').layout.annotations.map(a => a.text)")
    assert titles == ["A: dirichlet:0.05", "B: dirichlet:0.5", "C: classes:1"]
    ranges = page.evaluate(
        "() => ['yaxis', 'yaxis2', 'yaxis3'].map(a => document.getElementById('curve').layout[a].range)"
    )
    assert ranges[0] == ranges[1] == ranges[2]
    bands = [value for trace in chart(page, "curve") if trace.get("fill") for value in trace["y"]]
    assert (min(bands), max(bands)) == (0, 100)
    note = page.inner_text("#curve-note")
    assert "cut where no value can be" in note
    assert "of 2 seeds 1 from round 3 (A: dirichlet:0.05, fedprox)" in note
    assert any("(1 of 2 seeds)" in text for line in drawn for text in line["text"])
    assert page.locator("#chips label").count() == 3  # one for each method, whatever the condition

    head = page.locator("#tables table[data-table=methods]").nth(2).locator("button.sort", has_text="vacant")
    head.focus()
    page.keyboard.press("Enter")
    assert head.evaluate("each => each === document.activeElement")
    page.evaluate("() => { location.hash = '#methods?condition=gone'; }")
    assert page.input_value("#condition") == ""
    assert page.input_value("#method") == "fedavg (A)"

    page.select_option("#condition", "A: dirichlet:0.05")
    assert {line["axis"] for line in curves(page)} == {"x"}
    assert page.locator("#tables table[data-table=methods]").count() == 1
    assert page.locator("#confusion-method option").all_inner_texts() == [
        "fedavg (A)",
        "fedprox (A)",
        "pkd (A)",
    ]
    page.select_option("#x-axis", "cost")
    by_name = {line["name"]: line["x"] for line in reversed(curves(page))}
    assert by_name["fedavg"] == [1, 2, 3, 4]
    assert "only the whole is recorded" in page.inner_text("#curve-note")
    page.select_option("#x-axis", "traffic")
    assert curves(page)[0]["x"] == pytest.approx([0.002, 0.004, 0.006, 0.008])
    page.select_option("#x-axis", "time")
    assert curves(page)[0]["x"] == [0.5, 1, 1.5, 2]


def test_smoothing_is_a_mean_of_the_last_tested_rounds_and_says_so(page, two_methods):
    plain = mean_of(two_methods, "fedavg", lambda line: line.accuracy)
    page.select_option("#smooth", "3")
    expected = [np.mean(plain[max(0, i - 2) : i + 1]) for i in range(8)]
    assert curves(page)[0]["y"] == pytest.approx(expected, abs=1e-6)
    assert "mean of 3 tested rounds" in page.inner_text("#curve-caption")
    assert "mean of 3 tested rounds" in page.text_content("#curve .ytitle")


def test_one_client_stands_under_all_methods_and_classes_and_confusion_over_seeds(page, two_methods):
    page.select_option("#client", "2")
    page.select_option("#round", "4")
    page.select_option("#seed", "2")
    mine = [
        next(
            client
            for probe in run.probes
            if probe.round == 4
            for client in probe.clients
            if client.client == 2
        )
        for run in two_methods
        if run.seed == 2
    ]
    assert "seed 2, round 4" in page.inner_text("#side-title")
    shown = [row.locator("td").all_inner_texts() for row in page.locator("#side-table tbody tr").all()]
    told = [
        [
            f"{100 * getattr(stages, stage):.1f}"
            for stages in each
            if stages
            for stage in ("after", "aggregated")
        ]
        for each in ((c.groups.majority, c.groups.minority, c.groups.vacant) for c in mine)
    ]
    assert shown == told
    updated, averaged = (trace for trace in chart(page, "side-map") if trace["type"] == "heatmap")
    assert np.sort(updated["z"]) == pytest.approx(np.sort([100 * np.array(c.after) for c in mine]), abs=0.051)
    assert np.sort(averaged["z"]) == pytest.approx(
        np.sort([100 * np.array(c.aggregated) for c in mine]), abs=0.051
    )

    share = {
        label: [
            100 * np.array(run.summary.confusion) / np.sum(run.summary.confusion, axis=1, keepdims=True)
            for run in two_methods
            if run.label == label
        ]
        for label in ("fedavg", "fedvls")
    }
    matrix = lambda: np.array(chart(page, "matrix")[0]["z"])  # noqa: E731
    assert matrix() == pytest.approx(np.mean(share["fedavg"], axis=0))
    assert page.inner_text("#matrix-caption") == "fedavg, mean over 2 seeds"
    page.select_option("#confusion-method", "fedvls")
    page.select_option("#against", "fedavg")
    difference = np.mean(share["fedvls"], axis=0) - np.mean(share["fedavg"], axis=0)
    assert matrix() == pytest.approx(difference)
    heat = chart(page, "matrix")[0]
    assert heat["zmin"] == -heat["zmax"]
    page.select_option("#confusion-seed", "2")
    assert matrix() == pytest.approx(share["fedvls"][1] - share["fedavg"][1])
    page.select_option("#against", "")
    assert matrix() == pytest.approx(share["fedvls"][1])

    by_class = [
        np.mean([run.summary.class_accuracy for run in two_methods if run.label == label], axis=0)
        for label in ("fedavg", "fedvls")
    ]
    assert np.array(chart(page, "class-map")[0]["z"]) == pytest.approx(100 * np.array(by_class), abs=1e-6)
    page.select_option("#class-how", "difference")
    drawn = np.array(chart(page, "class-map")[0]["z"])
    assert drawn == pytest.approx(100 * (by_class[1] - by_class[0])[None], abs=1e-6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_the_confusion_matrix_stand_out_from_their_cells(page, scheme):
    page.emulate_media(color_scheme=scheme)

    def light(colour) -> float:
        parts = np.array(colour) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def rgb(text: str) -> list[int]:
        return [int(text[at : at + 2], 16) for at in (1, 3, 5)]

    for against in ("", "fedvls"):
        page.select_option("#against", against)
        heat, *texts = chart(page, "matrix")
        assert sum(len(trace["x"]) for trace in texts) >= 20
        stops = [at for at, _ in heat["colorscale"]]
        shades = np.array([rgb(colour) for _, colour in heat["colorscale"]])
        for trace in texts:
            for column, row in zip(trace["x"], trace["y"], strict=True):
                place = (heat["z"][row][column] - heat["zmin"]) / (heat["zmax"] - heat["zmin"])
                cell = [np.interp(place, stops, shades[:, part]) for part in range(3)]
                low, high = sorted((light(cell), light(rgb(trace["textfont"]["color"]))))
                assert (high + 0.05) / (low + 0.05) >= 4.5


def test_numbers_agree_in_table_hover_and_picture(open_page):
    """Use values between two printed numbers, and so many seeds that the order of a sum matters."""
    values = [0.1225, 0.77625, 0.77635, 0.776499, 0.77655, 0.7765, 0.776, 0.7771, 0.77649, 0.7760001]
    runs = [made("fedavg", seed, value) for seed, value in enumerate(values, 1)]
    runs += [made("fedvls", seed, 0.1225) for seed in range(1, 11)]
    right = [281, 283, 285, 280, 279, 284, 286, 277, 282, 280]  # of 360: the mean is exactly 78.25 %
    assert sum(right) % 18 == 9
    runs += [made("fedlc", seed, value / 360) for seed, value in enumerate(right, 1)]
    page = open_page(runs)
    rows = {
        row.locator("th").inner_text(): row.locator("td").first.inner_text().removesuffix("*")
        for row in page.locator("#tables table").first.locator("tbody tr").all()
    }
    for line in curves(page):
        assert (
            line["text"][-1].replace("\N{NO-BREAK SPACE}", " ") == f"{line['name']}: {rows[line['name']]} %"
        )
    page.select_option("#seeds", "lines")
    seeds = [line["text"][-1] for line in curves(page) if line["name"] == "fedavg"]
    assert [text.split(": ")[1].split("\N{NO-BREAK SPACE}")[0] for text in seeds] == [
        f"{100 * value:.1f}" for value in values
    ]


def test_the_first_picture_says_which_differences_are_settled(open_page):
    runs = [made("fedavg", s, 0.6 + s / 1000) for s in range(1, 5)]
    runs += [made("fedvls", s, 0.7 + s / 900, vacant=0.4 + s / 10) for s in range(1, 5)]
    runs += [made("fedprox", s, 0.55 + s / 40) for s in range(1, 5)]
    page = open_page(runs)
    told = answer(by_method(runs))
    found = {
        (trace["meta"]["method"], trace["meta"]["measure"]): trace for trace in chart(page, "forest-chart-0")
    }
    assert len(found) == 6
    paper = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')").strip()
    label = page.get_attribute("#forest-chart-0", "aria-label")
    for each in told.others:
        for measure in told.main:
            trace, change = found[each.name, TITLES[measure]], each.differences[measure]
            assert trace["x"] == pytest.approx([100 * change.difference], abs=1e-6)
            assert (trace["marker"]["color"] != paper) == change.settled
            low = trace["x"][0] - trace["error_x"]["arrayminus"][0]
            high = trace["x"][0] + trace["error_x"]["array"][0]
            assert (low, high) == pytest.approx([100 * end for end in change.interval], abs=1e-6)
            assert f"{TITLES[measure]} {points(change)}, {verdict(change)}" in label
    assert found["fedvls", "accuracy"]["marker"]["color"] != paper
    assert found["fedprox", "accuracy"]["marker"]["color"] == paper
    first = page.locator("main > section:visible").first
    assert first.get_attribute("id") == "forest"


def test_on_paper_the_legend_stays_and_lists_are_the_text_of_what_is_chosen(page):
    page.select_option("#metric", "vacant")
    page.get_by_label("fedavg", exact=True).uncheck()
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("select:visible, button.help:visible, nav:visible").count() == 0
    assert page.locator("#metric + .told").is_visible()
    assert page.inner_text("#metric + .told") == "accuracy of vacant classes"
    assert page.locator("#chips label:visible").all_inner_texts() == ["fedvls"]
    background = page.locator("#curve .main-svg").first.evaluate("svg => svg.style.backgroundColor")
    assert background == "rgb(255, 255, 255)"
    width = page.locator("#curve .main-svg").first.bounding_box()["width"]
    assert width <= 720
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("#metric").is_visible()
