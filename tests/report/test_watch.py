"""The page of a run that is under way, served to this machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from unskew.errors import UserError
from unskew.report.read import read_runs
from unskew.report.serve import LiveRuns, ReportServer


def grow(whole: Path, folder: Path, rounds: int) -> None:
    """Write a folder as it was after some rounds of a run that has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("experiment.toml", "environment.json", "partition.json"):
        if not (folder / name).exists():
            shutil.copy(whole / name, folder)
    for name in ("rounds.jsonl", "probes.jsonl"):
        lines = (whole / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["round"] <= rounds]
        (folder / name).write_text("".join(kept))
    if len((folder / "rounds.jsonl").read_text()) == len((whole / "rounds.jsonl").read_text()):
        shutil.copy(whole / "summary.json", folder)


@pytest.fixture
def serve() -> Iterator:
    servers = []

    def start(*folders: Path) -> ReportServer:
        server = ReportServer(LiveRuns(folders, read_runs), "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(
    server: ReportServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_the_page_and_its_data_are_served_and_nothing_else(serve, write_run):
    run = write_run(rounds=3)
    server = serve(run)
    status, page, headers = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert b"<!doctype html>" in page
    status, content, _ = ask(server, "/data.json")
    data = json.loads(content)
    assert (status, data["progress"]["finished"]) == (200, True)
    assert ask(server, f"/data.json?seen={data['revision']}")[:2] == (204, b"")
    for path in (
        "/summary.json",
        "/..",
        "/../summary.json",
        f"//{run}/summary.json",
        str(run),
        "/data.json/",
    ):
        assert ask(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/", method)[0] == 501


def test_a_foreign_name_for_this_machine_is_turned_away(serve, write_run):
    """Request data as in DNS rebinding, from a page of another site whose name was made to point here."""
    server = serve(write_run(rounds=2))
    for name in (
        "evil.example",
        f"evil.example:{server.server_port}",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil.example",
    ):
        status, content, _ = ask(server, "/data.json", host=name)
        assert (status, b"class" in content) == (403, False)
    for name in ("127.0.0.1", "localhost:1234", f"[::1]:{server.server_port}"):
        assert ask(server, "/data.json", host=name)[0] == 200


def test_the_data_follow_a_run_from_its_empty_folder_to_its_end(serve, write_run, tmp_path):
    whole, folder = write_run("whole", rounds=4, probe=2), tmp_path / "going"
    folder.mkdir()
    server = serve(folder)

    def data() -> dict:
        return json.loads(ask(server, "/data.json")[1])

    assert data()["runs"] == []
    shutil.copy(whole / "experiment.toml", folder)  # being set up
    assert data()["runs"] == []
    grow(whole, folder, 0)
    waiting = data()
    assert (waiting["progress"]["done"], waiting["progress"]["total"]) == (0, 4)
    assert waiting["progress"]["left"] is None
    grow(whole, folder, 3)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "acc')  # being written
    going = data()
    assert going["revision"] != waiting["revision"]
    assert (going["progress"]["done"], going["progress"]["finished"]) == (3, False)
    assert going["progress"]["left"] > 0
    grow(whole, folder, 4)
    ended = data()
    assert (ended["progress"]["finished"], ended["progress"]["left"]) == (True, 0)
    assert data()["revision"] == ended["revision"]


def test_what_was_seen_stays_when_a_file_is_damaged(serve, write_run):
    run = write_run(rounds=2)
    server = serve(run)
    ask(server, "/data.json")
    (run / "rounds.jsonl").write_text("no JSON\n")
    data = json.loads(ask(server, "/data.json")[1])
    assert len(data["runs"]) == 1
    assert "is damaged" in data["trouble"]


def test_a_compare_folder_shows_runs_as_they_begin(serve, write_run, tmp_path):
    whole, folder = write_run("whole", rounds=2, probe=2), tmp_path / "compare"
    folder.mkdir()
    server = serve(folder)
    grow(whole, folder / "fedavg-seed1", 2)
    grow(whole, folder / "fedavg-seed2", 1)
    data = json.loads(ask(server, "/data.json")[1])
    assert sorted(run["done"] for run in data["runs"]) == [1, 2]
    assert not data["progress"]["finished"]


def test_a_compare_can_be_watched_while_its_first_run_is_set_up(serve, write_run, tmp_path):
    """Include the hidden files of a run under way: locks, and files that are being written."""
    whole, folder = write_run("whole", rounds=2, probe=2), tmp_path / "compare"
    first = folder / "fedavg-seed1"

    def data() -> dict:
        return json.loads(ask(serve(folder), "/data.json")[1])

    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".plan.json.0a1b2c3d.part").touch()
    assert (data()["runs"], data()["trouble"]) == ([], "")
    (folder / ".plan.json.0a1b2c3d.part").unlink()
    planned = {"folder": first.name, "identity": "0"}
    (folder / "plan.json").write_text(json.dumps({"runs": [planned], "rounds": 2}))
    first.mkdir()
    (first / ".lock").touch()
    (first / ".experiment.toml.0a1b2c3d.part").touch()
    assert (data()["runs"], data()["trouble"]) == ([], "")
    (first / ".experiment.toml.0a1b2c3d.part").unlink()
    shutil.copy(whole / "experiment.toml", first)
    assert (data()["runs"], data()["trouble"]) == ([], "")
    grow(whole, first, 1)
    assert [run["done"] for run in data()["runs"]] == [1]


def test_what_cannot_be_watched_is_said_at_once(unskew, write_run, tmp_path):
    run = write_run(rounds=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("Dear all")
    damaged = write_run("damaged", rounds=2)
    (damaged / "partition.json").write_text("{")
    with ReportServer(LiveRuns([run], read_runs), "127.0.0.1", 0) as server:
        cases = [
            (("damaged",), "partition.json is damaged"),
            (("nowhere",), "there is no run folder nowhere"),
            (("other",), "other holds no run"),
            ((str(run), "--port", str(server.server_port)), "Address already in use"),
            ((str(run), "--port", "70000"), "from 1 to 65535"),
            ((str(run), "--port", "many"), "--port is 'many'"),
            ((str(run), "--host", "192.0.2.1"), "--host takes an address of this machine"),
        ]
        for arguments, words in cases:
            answer = unskew("watch", *arguments)
            assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
            assert words in answer.err


def test_a_port_is_not_shared(write_run):
    runs = LiveRuns([write_run(rounds=2)], read_runs)
    with ReportServer(runs, "127.0.0.1", 0) as server, pytest.raises(UserError, match="already in use"):
        ReportServer(runs, "127.0.0.1", server.server_port)


def test_a_browser_follows_a_growing_run_and_keeps_what_was_chosen(chromium, write_run, tmp_path):
    whole, folder = write_run("whole", rounds=6, probe=2), tmp_path / "going"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "unskew", "watch", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
        page = chromium.new_page()
        trouble, asked = [], []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        progress = page.locator("#progress-text")
        assert progress.inner_text() == "Waiting for the run to begin"
        grow(whole, folder, 2)
        page.get_by_text("Round 2 of 6", exact=True).wait_for()
        assert "left" in page.inner_text("#progress-left")
        page.select_option("#metric", "worst")
        page.select_option("#client", "3")
        page.select_option("#round", "2")
        page.locator("#tables summary").click()
        grow(whole, folder, 6)
        page.get_by_text("All 1 run finished").wait_for()
        assert page.input_value("#metric") == "worst"
        assert page.input_value("#client") == "3"
        assert page.input_value("#round") == "2"
        assert page.locator("#tables details").get_attribute("open") is not None
        rounds = page.evaluate("() => Array.from(document.getElementById('curve').data[0].x)")
        assert rounds == [1, 2, 3, 4, 5, 6]
        assert page.locator("#matrix .main-svg").first.is_visible()
        assert trouble == []
        assert {url.partition("?")[0] for url in asked} == {url, url + "data.json"}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
        page.get_by_text("The watch has ended").wait_for()
        page.close()
    finally:
        process.kill()
        process.communicate()
