"""What commands show: in terminals of several widths, in a pipe, with and without colours."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from unskew.cli import main
from unskew.cli.terminal import Grid

pytestmark = pytest.mark.usefixtures("no_workers")

BRIEF = ["--epochs", "1", "--clients", "3", "--skew", "dirichlet:0.1"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7])[;m]")
GROUPS = ("majority", "minority", "vacant")


@dataclass
class Seen:
    raw: str
    """All output to the terminal."""
    out: str
    """Standard output, if it was a pipe."""

    @property
    def lines(self) -> list[str]:
        """All lines ever shown, in order, without control sequences."""
        plain = STYLE.sub("", self.raw)
        return [line.rstrip() for line in re.split(rf"{ESCAPE.pattern}|[\r\n]+", plain) if line.strip()]

    @property
    def text(self) -> str:
        return ESCAPE.sub("", self.raw)


def watch(folder: Path, *arguments: str, width: int, pipe: bool = False, **environment: str) -> Seen:
    """Run a command in a pseudo-terminal; with `pipe` only its standard error is one."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    plain = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {key: value for key, value in os.environ.items() if key not in plain}
    kept |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment}
    out, into = os.pipe()  # which holds all that is written there
    child = os.fork()
    if not child:
        os.close(ours)
        be_unskew(arguments, folder, kept, (theirs, into if pipe else theirs, theirs))
    os.close(theirs)
    os.close(into)
    sent = read_all(ours)
    os.close(ours)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, sent.decode()
    with os.fdopen(out) as written:
        return Seen(sent.decode(), written.read())


def be_unskew(
    arguments: Sequence[str], folder: Path, environment: dict[str, str], streams: Sequence[int]
) -> NoReturn:
    """Become a process of the command line with these standard streams: faster than starting Python."""
    status: object = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (open(n, "rww"[n], closefd=False) for n in range(3))  # noqa: SIM115
        sys.argv = ["unskew", *arguments]
        main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def read_all(terminal: int) -> bytes:
    sent = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not part:
            break
        sent += part
    return sent


def rows_of(folder: Path, name: str = "rounds.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Path]:
    """Show a run in 60 columns, with everything that can be shown."""
    folder = tmp_path_factory.mktemp("narrow")
    flags = ["--rounds", "4", "--probe", "every=2", "--table", "--out", "[b]run"]
    return watch(folder, "run", *BRIEF, *flags, width=60), folder / "[b]run"


def test_the_live_bar_tells_where_the_run_is(narrow):
    seen, folder = narrow
    last = rows_of(folder)[-1]
    assert "━" in seen.raw
    assert re.search(r"fedavg seed 1 ━.*4/4 0:00:\d\d left 0:00:00", seen.text)
    numbers = f"accuracy {percent(last['accuracy'])} %  worst class {percent(last['min_class'])}  "
    numbers += f"vacant {percent(last['groups']['vacant'])}"
    at = seen.lines.index(numbers)
    assert re.fullmatch(r"probing \d+\.\d s", seen.lines[at + 1])  # in a line of its own: 61 columns in all
    assert COLOUR.search(seen.raw)


def test_nothing_is_wider_than_a_narrow_terminal(narrow):
    seen, folder = narrow
    assert max(map(cell_len, seen.lines)) <= 60
    assert "…" not in seen.text
    assert f"run folder: {folder.name}" in seen.text  # brackets are no markup


@pytest.mark.parametrize("command", ["methods", "data"])
def test_lists_are_whole_in_a_narrow_terminal(tmp_path, command):
    seen = watch(tmp_path, command, width=60)
    assert max(map(cell_len, seen.lines)) <= 60
    assert "…" not in seen.text


def test_a_narrow_terminal_still_shows_every_number_of_the_end(narrow):
    seen, folder = narrow
    summary = json.loads((folder / "summary.json").read_text())
    end = seen.text[seen.text.index("digits, dirichlet:0.1") :]
    shown: dict[str, str] = {}
    heads: list[str] = []
    for line in end.splitlines():
        if line.startswith("method"):
            heads = re.split(r"\s{2,}", line.strip())[1:]
        elif line.startswith("fedavg"):
            shown |= dict(zip(heads, line.split()[1:], strict=True))
    assert shown["accuracy %"] == percent(summary["accuracy"]["last"])
    assert shown["best by test"] == percent(summary["accuracy"]["best_by_test"])
    assert shown["worst class"] == percent(summary["worst_class_accuracy"])
    for group in GROUPS:
        assert shown[group] == percent(summary["groups"][group])
        drops = [probe["groups"][group]["drop"] for probe in rows_of(folder, "probes.jsonl")]
        assert shown[f"drop {group}"] == percent(sum(drops) / len(drops))
    assert shown["cost (rounds of FedAvg)"] == f"{summary['cost']:.3g}"
    assert shown["MB up"] == f"{summary['traffic']['up'] / 1e6:.3g}"
    assert shown["MB down"] == f"{summary['traffic']['down'] / 1e6:.3g}"
    assert shown["probing seconds"] == f"{summary['probe_seconds']:.1f}"
    for name, value in zip(summary["classes"], summary["class_accuracy"], strict=True):
        assert re.search(rf"^{name} +{percent(value)} ", end, re.MULTILINE)


def check_table(lines: list[str], folder: Path) -> None:
    """Check that there are a header and a row for each tested round, all of one width."""
    start = next(i for i, line in enumerate(lines) if re.match(r" *r(ou)?nd +lr +loss", line))
    tested = [row for row in rows_of(folder) if "accuracy" in row]
    table = lines[start : start + 1 + len(tested)]
    assert len({len(line) for line in table}) == 1
    for line, row in zip(table[1:], tested, strict=True):
        cells = line.split()
        assert cells[0] == str(row["round"])
        assert [float(cell) for cell in cells[1:3]] == pytest.approx([row["lr"], row["loss"]], rel=0.01)
        accuracies = [row["accuracy"], row["min_class"], *(row["groups"][group] for group in GROUPS)]
        assert cells[3:8] == [percent(value) for value in accuracies]
        assert float(cells[8]) == pytest.approx(row["seconds"], abs=0.005)


def test_the_table_per_round_in_a_narrow_terminal(narrow):
    seen, folder = narrow
    above = [line for line in seen.lines if not re.search("━|worst class|probing", line)]
    check_table(above, folder)


def test_the_table_per_round_in_a_pipe(unskew, tmp_path):
    flags = ["--rounds", "5", "--set", "evaluation.every=2", "--table", "--out", "run"]
    answer = unskew("run", *BRIEF, *flags, "--json")
    lines = answer.err.splitlines()
    assert lines[0] == "fedavg seed 1, accuracies in %"
    assert lines[1].split() == ["round", "lr", "loss", "accuracy", "worst", *GROUPS, "seconds"]
    assert lines.pop().startswith("time: ")
    assert len(lines) == 5  # rounds 2, 4 and 5: the table stands in for the plain lines
    check_table(lines, tmp_path / "run")
    assert len(answer.out.splitlines()) == 1
    assert unskew("run", *BRIEF, *flags[:-1], "again", "--quiet").err.count("\n") == 5  # it was asked for


def test_a_diverged_run_has_a_dash_for_what_is_no_number(unskew, tmp_path):
    (tmp_path / "broken.py").write_text(
        "from unskew import Method\nfrom unskew.types import Server\n\n\ndef broken() -> Method:\n"
        "    def move(state, delta):\n"
        "        return {name: value / 0 for name, value in delta.items()}, {}\n\n"
        "    return Method(server=Server(move=move))\n"
    )
    flags = ["--rounds", "1", "--lr", "0.1", "--method", "broken.py", "--table", "--probe", "1"]
    answer = unskew("run", *BRIEF, *flags)
    assert answer.code == 0
    assert answer.err.splitlines()[-2].split()[:3] == ["1", "0.1", "-"]


def test_every_run_of_a_comparison_has_its_number_and_its_table(unskew):
    answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--rounds", "2", "--seeds", "1,2", "--table")
    titles = [line for line in answer.err.splitlines() if line.endswith("accuracies in %")]
    cells = ["fedavg seed 1 (1/4)", "fedprox seed 1 (2/4)", "fedavg seed 2 (3/4)", "fedprox seed 2 (4/4)"]
    assert titles == [f"{cell}, accuracies in %" for cell in cells]
    assert len(answer.err.splitlines()) == 4 * 4 + 1  # and where the time went


def test_a_terminal_beside_a_pipe_gets_the_bar_and_the_pipe_the_json(tmp_path):
    flags = ["--rounds", "2", "--seeds", "1,2", "--json"]
    long = "fedprox:mu=0.125+fedexp:epsilon=0.0015"
    seen = watch(tmp_path, "compare", "fedavg", long, *BRIEF, *flags, width=60, pipe=True, NO_COLOR="1")
    assert json.loads(seen.out)["seeds"] == [1, 2]
    assert re.search(r"… \(4/4\) ━.*8/8", seen.text)
    assert max(map(cell_len, seen.lines)) <= 60
    assert not COLOUR.search(seen.raw)


def test_a_pipe_gets_plain_lines(unskew):
    answer = unskew("run", *BRIEF, "--rounds", "2", "--probe", "1")
    assert re.fullmatch(
        r"fedavg seed 1  2/2 rounds  accuracy \S+ %  worst class \S+  vacant \S+  probing \d+\.\d s  "
        r"0:00:\d\d, left 0:00:00\ntime: .*\n",
        answer.err,
    )
    assert "\x1b" not in answer.err + answer.out


PART = r"[a-z0-9 -]+ (\d+\.\d)"


def check_time(line: str) -> None:
    """Check that the parts of a line about the time add up."""
    total, inside, later = re.fullmatch(r"time: (\S+) s = start \S+ \((.*?)\) \+ (.*)", line).groups()
    parts = [float(re.fullmatch(PART, part)[1]) for part in inside.split(", ")]
    parts += [float(re.match(PART, part)[1]) for part in later.split(" + ")]
    assert float(total) == pytest.approx(sum(parts), abs=1e-6)


def test_where_the_time_went_is_the_last_line(unskew, tmp_path):
    answer = unskew("run", *BRIEF, "--rounds", "4", "--out", "run")
    line = answer.err.splitlines()[-1]
    assert re.search(
        r"\(imports \S+, data \S+, partition \S+, set-up \S+\) \+ first round \S+ \+ 3 rounds", line
    )
    check_time(line)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["time"]
    assert told["total"] == pytest.approx(
        sum(told["start"].values()) + told["first_round"] + told["rounds"] + told["end"]
    )
    answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--rounds", "2", "--out", "both")
    line = answer.err.splitlines()[-1]
    assert re.search(r" \+ 2 runs \S+ \(first rounds \S+, other rounds \S+, overhead \S+\) \+ end \S+$", line)
    check_time(line)
    told = json.loads((tmp_path / "both" / "compare.json").read_text())["time"]
    assert told["total"] == pytest.approx(sum(told["start"].values()) + told["runs"] + told["end"])
    assert unskew("run", *BRIEF, "--rounds", "1", "--quiet").err == ""


def test_a_setting_that_changes_nothing_is_said(unskew):
    answer = unskew("run", *BRIEF, "--set", "fast=true", "--set", "device=cpu")
    assert "note: fast=true changes nothing here: it is for the graphs engine on a GPU.\n" in answer.err


def test_methods_are_compared_with_the_reference_on_the_same_seeds(unskew, tmp_path):
    methods = ["fedavg", "fedprox:mu=0", "fedprox:mu=5"]
    answer = unskew("compare", *methods, *BRIEF, "--rounds", "3", "--seeds", "1-3", "--out", "all", "--quiet")
    whole = json.loads((tmp_path / "all" / "compare.json").read_text())
    lines = [line.rstrip() for line in answer.out.splitlines()]
    start = lines.index(
        "against fedavg on the same seeds, in points (95 % interval); * significant after Holm's correction"
    )
    same, other = (re.split(r"\s{2,}", line) for line in lines[start + 2 : start + 4])
    assert same[:4] == ["fedprox:mu=0"] + ["0.0 (0.0 to 0.0)"] * 3
    runs = {(run["method"], run["hyperparameters"].get("mu"), run["seed"]): run for run in whole["runs"]}
    differences = [
        runs["fedprox", 5, seed]["accuracy"]["last"] - runs["fedavg", None, seed]["accuracy"]["last"]
        for seed in (1, 2, 3)
    ]
    mean = sum(differences) / 3
    found = whole["answer"]["differences"]["fedprox:mu=5"]["accuracy"]
    assert found["difference"] == pytest.approx(mean)
    low, high = found["interval"]
    shown = f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})".replace("-", "−")
    assert other[1] == shown + "*" * found["settled"]
    closing = lines[lines.index("accuracy against fedavg, over 3 seeds") + 2 :]
    assert closing[0].endswith("the same in every seed")
    assert shown in closing[1]
    assert ("not significant" in closing[1]) != found["settled"]
    assert "".join(whole["answer"]["sentence"].split()) in "".join(answer.out.split())


def test_another_reference_can_be_asked_for(unskew, tmp_path):
    run = [*BRIEF, "--rounds", "1", "--seeds", "1-3", "--quiet", "--out", "all"]
    answer = unskew("compare", "fedavg", "fedprox:mu=5", *run, "--reference", "fedprox:mu=5")
    assert answer.code == 0, answer.err
    assert "against fedprox:mu=5 on the same seeds" in answer.out
    told = json.loads((tmp_path / "all" / "compare.json").read_text())["answer"]
    assert list(told["differences"]) == ["fedavg"]
    (tmp_path / "all" / "compare.json").unlink()
    again = unskew("resume", "all", "--quiet")
    assert "against fedprox:mu=5 on the same seeds" in again.out
    wrong = unskew("compare", "fedavg", "fedprox", "--reference", "fedlc")
    assert wrong.code == 2
    assert "fedlc" in wrong.err


def test_one_seed_claims_nothing(unskew):
    answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--rounds", "1", "--quiet")
    assert answer.code == 0
    assert "significant" not in answer.out
    assert "interval" not in answer.out


def test_names_with_brackets_are_safe_everywhere(unskew, tmp_path):
    (tmp_path / "[red]mine.py").write_text(
        "from unskew import Method\n\n\ndef mine():\n    return Method()\n"
    )
    answer = unskew("compare", "[red]mine.py", *BRIEF, "--rounds", "1", "--table")
    assert answer.code == 0, answer.err
    assert answer.err.startswith("[red]mine.py seed 1, accuracies in %\n")
    assert "\n[red]mine.py " in answer.out


def test_the_flag_for_probing_sets_the_period(unskew, tmp_path):
    for number, flag in enumerate(("every=3", "3")):
        answer = unskew("run", *BRIEF, "--rounds", "4", "--quiet", "--probe", flag, "--out", str(number))
        assert answer.code == 0
        assert [probe["round"] for probe in rows_of(tmp_path / str(number), "probes.jsonl")] == [3, 4]
        assert "[probe]\nevery = 3\n" in (tmp_path / str(number) / "experiment.toml").read_text()
    again = unskew("run", "0/experiment.toml", "--quiet", "--probe", "never", "--out", "none")
    assert again.code == 0, again.err
    assert not (tmp_path / "none/probes.jsonl").exists()


cells = st.text("ab[]µ·±9", min_size=1, max_size=12)


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(cells, min_size=n + 1, max_size=n + 1), min_size=2, max_size=5)
    ),
    st.integers(30, 120),
)
def test_a_grid_shows_every_cell_within_the_width(rows, width):
    heads, *rows = rows
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False, emoji=False).print(Grid(heads, rows))
    lines = file.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    shown = [line.split() for line in lines if line]
    assert {line[0] for line in shown} == {heads[0], *(row[0] for row in rows)}
    assert sorted(cell for line in shown for cell in line[1:]) == sorted(
        cell for row in [heads, *rows] for cell in row[1:]
    )


def test_the_last_lines_say_what_to_do_next_and_can_be_pasted(unskew, tmp_path):
    answer = unskew("run", *BRIEF, "--rounds", "1", "--out", "one run")
    last = answer.out.splitlines()[-1]
    assert last == "next: unskew report 'one run' --out 'one run/report.html'"
    assert unskew(*shlex.split(last)[2:]).code == 0
    assert (tmp_path / "one run" / "report.html").exists()
    answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--rounds", "1", "--out", "both")
    *_, page, table = answer.out.splitlines()
    assert page == "next: unskew report both --out both/report.html"
    assert table == "      unskew table both --out both/table.tex"
    assert unskew(*shlex.split(table)[1:]).code == 0
    for flag in ("--quiet", "--json"):
        assert "next:" not in unskew("run", *BRIEF, "--rounds", "1", flag).out


def test_what_failed_can_be_run_again_as_it_is_told(unskew, tmp_path):
    (tmp_path / "my file.py").write_text(
        "from pathlib import Path\n\nfrom unskew import Method\nfrom unskew.types import Server\n\n\n"
        "def mine() -> Method:\n    def move(state, delta):\n"
        "        if not Path('fixed').exists():\n            raise ValueError('broken')\n"
        "        return delta, {}\n\n    return Method(server=Server(move=move))\n"
    )
    answer = unskew("compare", "my file.py", "fedavg", *BRIEF, "--rounds", "1", "--out", "both")
    assert answer.code == 2
    command = re.search(r"run what failed again with: unskew (.*); the other runs", answer.err)[1]
    (tmp_path / "fixed").touch()
    answer = unskew(*shlex.split(command))
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-2] == "next: unskew report both --out both/report.html"


def test_rounds_that_validation_chose_are_told_from_first_to_last(unskew, tmp_path):
    flags = ["--rounds", "4", "--validation", "0.2", "--stop", "patience=1", "--lr", "0.3", "--seeds", "1-4"]
    answer = unskew("compare", "fedavg", *BRIEF, *flags, "--quiet", "--out", "all")
    lines = answer.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("method"))
    heads, row = (re.split(r"\s{2,}", line) for line in lines[start : start + 2])
    shown = dict(zip(heads, row, strict=True))
    runs = json.loads((tmp_path / "all" / "compare.json").read_text())["runs"]
    chosen = [run["validation"]["round"] for run in runs]
    ended = [run["rounds"] for run in runs]
    assert any(run["validation"]["stopped"] for run in runs)

    def between(rounds):
        return "-".join(str(each) for each in sorted({min(rounds), max(rounds)}))

    assert shown["in round"] == between(chosen)
    assert shown["ended in round"] == between(ended)


def test_the_skew_is_told_in_words(unskew):
    skew = unskew("skew", "--clients", "3", "--skew", "labels:5").out
    assert "each client holds 5 of 10 classes" in skew
    run = unskew("run", "--epochs", "1", "--clients", "3", "--skew", "labels:5", "--rounds", "1").out
    assert run.splitlines()[1] in skew
