"""Races unskew against other libraries and a bare PyTorch loop on identical work."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import unskew
from benchmarks import environments, work, workloads
from benchmarks.table import OURS, PEERS, Competitor, Run, bars, judge, markdown, rows, threads, timed

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
MODULES = {"torch": "torch_loop"}
PATIENCE = 900
"""Seconds after which a competitor is stopped."""


class FailureError(Exception):
    """A competitor did not finish; the message says why."""


def field(cores: int) -> list[Competitor]:
    """Return the competitors.

    Libraries with one process race with one thread and with one per core, because the size of the model
    decides which is faster. Those that can use several processes race with these too.
    """
    alone = [(threads(1), "1")] if cores == 1 else [(threads(1), "1"), (threads(cores), str(cores))]
    settings: dict[str, list[tuple[str, str]]] = {
        "unskew": [("pool", "pool"), ("loop", "loop")],
        "torch": alone,
        "pfl": [*alone, (f"{cores} processes", "processes")],
        "fedlab": alone,
        "fluke": alone,
        "flower": [(f"{cores} actors", "actors")],
        "blazefl": [
            *alone,
            (f"pool of {threads(cores)}", "pool of threads"),
            (f"{cores} processes", "processes"),
        ],
        "pfllib": alone,
        "flbench": [*alone, (f"{cores} actors", "actors")],
    }
    return [
        Competitor(library, setting, argument)
        for library, choices in settings.items()
        for setting, argument in choices
    ]


def run(competitor: Competitor, repetition: int, folder: Path, cores: int) -> Run:
    """Run a competitor in a process of its own, alone on the machine."""
    report, log = folder / "report.json", folder / "log.txt"
    report.unlink(missing_ok=True)
    library = competitor.library
    python = environments.python(library) if library in PEERS else Path(sys.executable)
    launch = [str(python), "-m"]
    if competitor.argument == "processes" and library == "pfl":
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(cores), "-m"]
    module = f"benchmarks.peers.{MODULES.get(library, library)}"
    with log.open("w") as output:
        started = time.monotonic()
        child = subprocess.Popen(
            [*launch, module, str(folder), str(report), competitor.argument],
            cwd=ROOT,
            env=environment(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise FailureError(f"not finished after {PATIENCE} s") from None
        finally:
            ended = time.monotonic()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if code or not report.exists():
        said = [line for line in log.read_text(errors="replace").splitlines() if any(map(str.isalpha, line))]
        raise FailureError(f"exit code {code}: {said[-1] if said else 'it said nothing'}")
    answer = json.loads(report.read_text())
    whole, rounds = ended - started, timed(answer["laps"])
    return Run(competitor, repetition, whole, rounds, answer["accuracy"], answer["versions"])


def prepare(competitors: list[Competitor], folder: Path) -> None:
    """Let the libraries that read files in their own format write them, before times are measured."""
    for library in {each.library for each in competitors} & environments.CHECKOUTS.keys():
        module = f"benchmarks.peers.{library}"
        subprocess.run(
            [
                environments.python(library),
                "-m",
                module,
                folder,
                folder / "report.json",
                environments.PREPARE,
            ],
            cwd=ROOT,
            env=environment(folder),
            check=True,
        )


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of competitors, without the user's settings of threads and
    clusters."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    inherited.pop("RAY_ADDRESS", None)
    return inherited | {
        "PYTHONPATH": str(ROOT),
        # Flower and Ray: no telemetry, and no files in the home folder.
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(folder / "flower"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
    }


def compete(
    competitors: list[Competitor], prepared: work.Work, repetitions: int
) -> tuple[list[Run], dict[str, str]]:
    """Run all competitors in turn, repeatedly, each time starting with another one.

    Return the runs, and by name why competitors did not finish.
    """
    runs: list[Run] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="race-") as scratch:
        folder = Path(scratch)
        work.save(prepared, folder)
        prepare(competitors, folder)
        for repetition in range(repetitions):
            first = repetition * len(competitors) // repetitions
            for competitor in competitors[first:] + competitors[:first]:
                if competitor.name in failures:
                    continue
                try:
                    done = run(competitor, repetition, folder, prepared.cores)
                except FailureError as failure:
                    failures[competitor.name] = str(failure)
                    print(f"  {competitor.name}: failed: {failure}", flush=True)
                    continue
                runs.append(done)
                turn = f"{repetition + 1}/{repetitions}"
                print(
                    f"  {turn} {competitor.name}: {done.whole:.1f} s, {done.seconds * 1000:.1f} ms a round",
                    flush=True,
                )
    return runs, failures


def race(name: str, competitors: list[Competitor], options: argparse.Namespace) -> None:
    """Race on a workload, and write its results to files."""
    workload = workloads.WORKLOADS[name]
    try:
        prepared = workloads.make(
            workload, rounds=options.rounds, cores=options.cores, channels_last=options.channels_last
        )
    except unskew.UserError as error:
        print(f"\n{name}: skipped: {error}")
        return
    print(f"\n{name}: {workload.title}", flush=True)
    budget = asdict(prepared.budget)
    conditions = describe_machine(options.cores) | {
        "layout": layout(options.channels_last),
        "work": ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in budget.items()),
        "repetitions": f"{options.repetitions}, competitors in turn",
        "whole": "from the start of the process to its end, with a test of the model at the end",
        "rounds timed": "all but the first and the last",
    }
    runs, failures = compete(competitors, prepared, options.repetitions)
    conditions["versions"] = ", ".join(versions(runs))
    table = rows(runs)
    verdicts = [judge(bar, table) for bar in bars(name, options.cores)]
    page = "\n".join(
        [
            f"# {name}: {workload.title}",
            "",
            *(f"- {key}: {value}" for key, value in conditions.items()),
            "",
            markdown(table, verdicts),
            *(f"- failed: {who}: {why}" for who, why in failures.items()),
            "",
        ]
    )
    record = {
        "workload": name,
        "budget": budget,
        "conditions": conditions,
        "rows": [asdict(row) for row in table],
        "bars": [{**asdict(verdict), "holds": verdict.holds} for verdict in verdicts],
        "failures": failures,
        "runs": [asdict(one) for one in runs],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    stem = f"{today}-peers-{name}" + "-channels-last" * options.channels_last
    (options.out / f"{stem}.md").write_text(page, encoding="utf-8")
    (options.out / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{page}\nwritten: {options.out / stem}.md and .json", flush=True)


def layout(channels_last: bool) -> str:
    if channels_last:
        return "channels_last for all"
    return "PyTorch's default for all but unskew, which chooses by itself"


def versions(runs: list[Run]) -> list[str]:
    """Return the versions of all packages in the race, two of one package if competitors differ."""
    return sorted({f"{name} {value}" for run in runs for name, value in run.versions.items()})


def describe_machine(cores: int) -> dict[str, str]:
    load = os.getloadavg()[0]
    busy = " (busy: expect noise)" if load > 0.3 else ""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": commit(),
        "processor": processor(),
        "cores used": f"{cores} of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load before": f"{load:.2f}{busy}",
    }


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")
    ]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def names_in(text: str) -> list[str]:
    return text.split(",")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    names = list(workloads.WORKLOADS)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(names)}; all by default"
    )
    parser.add_argument("--repetitions", type=int, default=3, help="processes of each competitor")
    parser.add_argument("--rounds", type=int, help="instead of the workload's own number")
    parser.add_argument("--cores", type=int, default=2, help="that the race may use, the others stay idle")
    parser.add_argument(
        "--only", metavar="LIBRARY,...", type=names_in, help="race only these, and unskew's pool"
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="give every competitor its model in that memory format"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    options.workloads = options.workloads or names
    available = sorted(os.sched_getaffinity(0))
    libraries = sorted({competitor.library for competitor in field(1)})
    if unknown := set(options.workloads) - set(names):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}: choose from {', '.join(names)}.")
    if unknown := set(options.only or []) - set(libraries):
        parser.error(f"unknown library {', '.join(sorted(unknown))}: choose from {', '.join(libraries)}.")
    if not 1 <= options.cores <= len(available):
        parser.error(f"--cores is {options.cores}, but this process may use {len(available)}.")
    if options.repetitions < 1 or (options.rounds is not None and options.rounds < 3):
        parser.error("a race needs at least 1 repetition of 3 rounds: the first and the last do not count.")
    os.sched_setaffinity(0, available[: options.cores])  # competitors inherit it
    return options


def main() -> None:
    options = parse()
    competitors = []
    for competitor in field(options.cores):
        if competitor.library in PEERS and (step := environments.missing(competitor.library)):
            print(f"{competitor.name}: left out, not there: {step}.")
        elif competitor.name == OURS or options.only is None or competitor.library in options.only:
            competitors.append(competitor)
    for name in options.workloads:
        race(name, competitors, options)


if __name__ == "__main__":
    main()
