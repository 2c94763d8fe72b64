"""The page about runs: what it says, and that a browser shows it from disk, alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from invented import made

from unskew import record
from unskew.report.page import page_data, render, write_page
from unskew.report.read import Run, read_run, read_runs

HOSTILE = "</script><img src=x onerror=alert(1)>"


# What the page is made from


def test_methods_are_marked_and_compared_on_the_seeds_that_all_have():
    runs = [made("fedavg", 1, 0.8), made("fedavg", 2, 0.6), made("pkd", 1, 0.75)]
    rows = page_data(runs)["blocks"][0]["rows"]
    assert not any(best for row in rows for _, best in row["cells"])
    assert rows[1]["against"] == "−5.0"


def test_runs_under_different_conditions_stand_in_blocks_of_their_own():
    mild = [made("fedavg", skew="dirichlet:0.5"), made("fedvls", accuracy=0.5, skew="dirichlet:0.5")]
    data = page_data([made("fedavg"), made("fedvls", accuracy=0.7), *mild])
    assert [block["title"][:2] for block in data["blocks"]] == ["A:", "B:"]
    first, second = data["blocks"]
    assert "fedvls ends at 70.0" in first["sentence"]
    assert "fedavg ends at 60.0" in second["sentence"]
    assert data["methods"] == ["fedavg (A)", "fedvls (A)", "fedavg (B)", "fedvls (B)"]


def test_what_was_tuned_for_each_method_is_no_other_condition():
    def with_lr(run, lr):
        return replace(run, experiment=run.experiment | {"budget": {**run.experiment["budget"], "lr": lr}})

    tuned = [with_lr(made("fedavg"), 0.1), with_lr(made("fedvls", accuracy=0.7), 0.5)]
    [block] = page_data(tuned)["blocks"]
    assert "fedvls ends at 70.0" in block["sentence"]
    assert "budget.lr was chosen for each method: 0.1 for fedavg, 0.5 for fedvls." in block["notes"]
    twice = page_data([*tuned, with_lr(made("fedavg", accuracy=0.5), 0.5)])
    assert len(twice["blocks"]) == 2  # of one method, it is a condition


def test_the_best_is_marked_only_among_runs_at_the_same_round():
    slow = [made("fedavg", s, 0.6) for s in (1, 2, 3)]
    done = page_data([*slow, *(made("fedvls", s, 0.68 + s / 100) for s in (1, 2, 3))])
    cells = [row["cells"][0] for row in done["blocks"][0]["rows"]]
    assert cells == [["60.0 ± 0.0", False], ["70.0 ± 1.0", True]]
    going = page_data([*slow, *(made("fedvls", s, 0.68 + s / 100, done=2) for s in (1, 2, 3))])
    assert not any(best for row in going["blocks"][0]["rows"] for _, best in row["cells"])


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
        run, rounds=rounds, classes=tuple(map(str, range(many))), counts=np.ones((2, many), dtype=np.int64)
    )
    shown = page_data([run])["runs"][0]
    assert len(shown["rounds"]["by_class"]) < 1000
    assert shown["rounds"]["by_class"][-1] == 1000
    assert len(shown["series"]["accuracy"][1]) == 1000


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


@pytest.fixture
def open_page(chromium, tmp_path):
    """Opens the page about runs from disk. What it complains of or asks the network for fails the test."""
    contexts, trouble, asked = [], [], []

    def show(runs: list[Run], width: int = 1280, **options):
        file = tmp_path / f"page{len(contexts)}.html"
        write_page(runs, file)
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#curve .main-svg")
        return page

    yield show
    for context in contexts:
        context.close()
    assert trouble == []
    assert all(url.startswith("file:") and url.endswith(".html") for url in asked)
    assert len(asked) == len(contexts)


@pytest.fixture
def two_methods(write_run) -> list[Run]:
    folders = [
        write_run(f"{method}-{seed}", method=method, seed=seed, probe=4, rounds=8)
        for method in ("fedavg", "fedvls")
        for seed in (1, 2)
    ]
    return read_runs(folders)


def curves(page) -> list[dict]:
    """The lines that are drawn: name, rounds and values."""
    return page.evaluate(
        "() => document.getElementById('curve').data.filter(t => t.hoverinfo !== 'skip')"
        ".map(t => ({name: t.meta, x: Array.from(t.x), y: Array.from(t.y)}))"
    )


def mean_of(runs: list[Run], label: str, value) -> list[float]:
    each = [[100 * value(line) for line in run.rounds] for run in runs if run.label == label]
    return np.mean(each, axis=0).tolist()


def test_the_page_opens_from_disk_answers_first_and_tells_values_on_hover(open_page, two_methods):
    page = open_page(two_methods)
    data = page_data(two_methods)
    assert page.text_content("#answers .answer") == data["blocks"][0]["sentence"]
    rows = page.locator("#tables table").first.locator("tbody tr")
    assert rows.count() == 2
    assert rows.nth(0).locator("th").inner_text() == "fedavg"
    for row, told in zip(rows.all(), data["blocks"][0]["rows"], strict=True):
        assert told["cells"][0][0] in row.inner_text()
    best = [best for row in data["blocks"][0]["rows"] for _, best in row["cells"]]
    assert page.locator("#tables td.best").count() == sum(best)
    assert page.text_content("#experiment") == (two_methods[0].path / "experiment.toml").read_text()
    assert "device name" in page.inner_text("#environment")
    page.locator("#curve").scroll_into_view_if_needed()
    box = page.locator("#curve .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#curve .hoverlayer .legend")
    assert "fedavg: " in page.text_content("#curve .hoverlayer")


def test_the_measure_methods_and_seeds_of_the_curves_can_be_chosen(open_page, two_methods):
    page = open_page(two_methods)
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
    page.get_by_label("each seed").check()
    assert [line["name"] for line in curves(page)] == ["fedvls", "fedvls"]
    page.click("#none")
    assert curves(page) == []
    assert "No method is chosen." in page.inner_text("#curve-note")
    page.click("#all")
    assert len(curves(page)) == 4


def test_a_click_in_the_picture_or_a_key_in_the_list_picks_a_client(open_page, two_methods):
    page = open_page(two_methods)
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
    assert sorted(after) == pytest.approx(sorted(100 * value for value in mine.after), abs=0.01)


def test_what_a_run_does_not_have_is_said_and_how_to_get_it(open_page, write_run):
    ended, going = write_run("ended", untested=[2]), write_run("going", method="fedvls", done=3)
    page = open_page(read_runs([ended, going]))
    confusion = np.array(json.loads((ended / "summary.json").read_text())["confusion"])
    drawn = page.evaluate("() => document.getElementById('matrix').data[0].z.map(row => Array.from(row))")
    assert drawn[2] == [None] * 10  # no test sample, no share
    tested = [row for row in range(10) if row != 2]
    shares = 100 * confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    assert np.allclose(np.array(drawn)[tested].astype(float), shares[tested])
    page.select_option("#confusion-run", str(going))
    assert "when the run ends" in page.inner_text("#confusion-note")
    assert page.locator("#matrix").is_hidden()
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
    page.get_by_label("each seed").check()
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
    page.select_option("#site-measure", "macro")
    each = [site for run in runs[:2] for site in run.summary.sites.each if site.name == "south"]
    mean = np.mean([site.balanced_accuracy for site in each])
    assert rows.nth(2).locator("td").nth(2).inner_text().startswith(f"{100 * mean:.1f} ± ")
    page.select_option("#site-run", str(runs[2].path))
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


def test_without_sites_there_is_no_such_section(open_page, write_run):
    page = open_page(read_runs([write_run(rounds=2)]))
    assert not page.is_visible("#sites")
    assert not page.is_visible("#sites-link")
