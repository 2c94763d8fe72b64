"""A federation of Flower's own processes on this machine, and an app whose clients follow instructions."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from unskew.flower import local, processes
from unskew.flower.new_app import write_app
from unskew.report.read import read_run

SETTINGS = {
    "method": "scaffold",
    "seed": 1,
    "data.name": "digits",
    "skew.recipe": "part:0.25+dirichlet:0.1",
    "skew.clients": 2,
    "model.name": "mlp-small",
    "budget.rounds": 2,
    "budget.epochs": 1,
}
PATIENCE = 300.0
"""Seconds to wait for something that should happen."""

CLIENT = '''"""A site that waits, fails or sends a bad update if a folder has a file that says so."""

import time
from pathlib import Path

import torch
from flwr.clientapp import ClientApp

from unskew import flower
from unskew.flower.records import from_record, to_record

FOLDER = Path({folder!r})
honest = flower.client_app(Path(__file__).parent)
app = ClientApp()
app.evaluate()(honest)
app.query()(honest)

SPOILT = {{
    "nan": lambda tensor: torch.full_like(tensor, torch.nan),
    "shapes": lambda tensor: tensor[..., None],
}}


@app.train()
def train(message, context):
    client, round = context.node_config["partition-id"], int(message.metadata.group_id)
    there = {{path.name.split()[0] for path in FOLDER.glob(f"* {{client}} {{round}}")}}
    if "hold" in there:
        (FOLDER / f"held {{client}} {{round}}").touch()
        while (FOLDER / f"hold {{client}} {{round}}").exists():
            time.sleep(0.1)
    if "raise" in there:
        raise RuntimeError("the disk of this site is gone")
    reply = honest(message, context)
    for how in there & SPOILT.keys():
        tensors = from_record(reply.content[f"fit/{{client}}"])
        first = next(iter(tensors))
        reply.content[f"fit/{{client}}"] = to_record(tensors | {{first: SPOILT[how](tensors[first])}})
    return reply
'''


def until(there, what, patience=PATIENCE):
    """Wait until a function returns something true, and return it."""
    end = time.monotonic() + patience
    while not (found := there()):
        assert time.monotonic() < end, f"{what}: not within {patience:g} s"
        time.sleep(0.2)
    return found


class Started:
    """A `flwr run --stream` that was started."""

    def __init__(self, command, log, folder):
        self.log, self.folder = log, folder
        with log.open("w") as out:  # no pipe, which would have to be read
            self.process = subprocess.Popen(command, shell=True, stdout=out, stderr=subprocess.STDOUT)

    def end(self):
        """Wait until it has ended, and return its output."""
        until(lambda: self.process.poll() is not None, f"flwr run has ended ({self.log})")
        return self.log.read_text()


class Deployment:
    """A SuperLink and two SuperNodes with TLS and keys, in a folder that also has apps and runs. With
    `state`, it is a federation that is up already, in another folder."""

    def __init__(self, folder, state=None):
        self.folder, self.state = folder, state
        self.place = Path(state.folder) if state else folder / "federation"
        self.begun = 0

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, *_):
        self.down()

    def up(self):
        self.state = local.up(self.place, ["", ""])

    def down(self):
        return local.down(self.place)

    def app(self, name, settings=None):
        """Write an app as `unskew flower init` does, and return its folder."""
        folder = self.folder / name
        write_app(folder, settings or SETTINGS, like=None, nodes=2)
        return folder

    def instructed_app(self, name):
        """Write an app whose clients follow the files in the folder `instructions`, and return its folder."""
        folder = self.app(name)
        (self.folder / "instructions").mkdir(exist_ok=True)
        (folder / name / "client_app.py").write_text(CLIENT.format(folder=str(self.folder / "instructions")))
        return folder

    def instruct(self, what, client, round):
        (self.folder / "instructions" / f"{what} {client} {round}").touch()

    def clear_instructions(self):
        """Remove all instructions for clients."""
        for path in (self.folder / "instructions").iterdir():
            path.unlink()

    def held(self, client, round):
        """Wait until a client is held in a round."""
        path = self.folder / "instructions" / f"held {client} {round}"
        until(path.exists, f"client {client} is held in round {round}")
        path.unlink()

    def release(self, client, round):
        (self.folder / "instructions" / f"hold {client} {round}").unlink()

    def begin(self, app, out, settings=None):
        """Start a run that writes the folder `out`, with some of the app's settings changed."""
        folder = self.folder / out
        changed = {"federation.out": str(folder)} | (settings or {})
        said = " ".join(f"{key}={json.dumps(value)}" for key, value in changed.items())
        self.begun += 1
        line = local.run_command(self.place).replace("run APP", f"run '{app}'")
        return Started(f"{line} -c '{said}'", self.folder / f"run-{self.begun}.log", folder)

    def run(self, app, out, settings=None):
        """Run an app, which has to end well, and return the run and the output of `flwr run`."""
        started = self.begin(app, out, settings)
        said = started.end()
        assert (started.folder / "summary.json").exists(), said
        return read_run(started.folder), said

    def flwr(self, *arguments):
        """Return the JSON that another command of Flower prints."""
        line = local.run_command(self.place).replace("run APP unskew --stream", " ".join(arguments))
        done = subprocess.run(f"{line} --format json", shell=True, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def runs(self):
        """Return what the SuperLink reports of every run, the last first."""
        return self.flwr("list", "unskew")["runs"]

    def named(self, command):
        """Return the numbers of the federation's processes whose command has this name."""
        every = processes.running(self.state.mark)
        return [pid for pid in every if any(Path(word).name == command for word in _read(pid, "cmdline")[:2])]

    def environments(self, command):
        """Return the environments of the processes whose command has this name."""
        return [found for pid in self.named(command) if (found := _environment(pid))]

    def of_node(self, number):
        """Return the numbers of all processes of a SuperNode."""
        home = f"FLWR_HOME={self.place / f'node-{number}'}"
        return [pid for pid in processes.running(self.state.mark) if home in _read(pid, "environ")]

    def kill_node(self, number):
        """Kill a SuperNode and its descendants. Return its process and environment, to start it again."""
        process = self.state.nodes[number]
        environment = _environment(process.pid)
        while mine := self.of_node(number):
            kill(mine)
        return process, environment

    def kill_client(self, number):
        """Kill the ClientApp of a SuperNode."""
        kill(set(self.of_node(number)) & set(self.named("flwr-clientapp")))

    def start_node(self, process, environment):
        """Start a node again that was killed, and wait until it is online."""
        processes.start(process.command, environment, Path(process.log))
        until(lambda: self.online() == len(self.state.nodes), f"{process.name} is online")

    def online(self):
        return [node["status"] for node in self.flwr("supernode", "list", "unskew")["nodes"]].count("online")


def _read(pid, what):
    """Return the strings in a file of a process under /proc."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:  # it has ended
        return []


def _environment(pid):
    return dict(pair.split("=", 1) for pair in _read(pid, "environ") if pair)


def kill(pids):
    """Kill processes, and wait until they have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), f"{pids} have ended")
