"""Prepared experiments, each trained into its folder: side by side in processes of this machine, on a Ray
cluster, or one after another."""

from unskew.sweep.cells import SweepRun, is_finished
from unskew.sweep.one_run import execute, run_folder
from unskew.sweep.processes import Message, at_once
from unskew.sweep.resume import CLIENT_FILES, how_to_resume, remove_leftovers, resume_command
from unskew.sweep.runner import sweep
from unskew.sweep.signals import stopping
from unskew.sweep.watcher import Watcher

__all__ = [
    "CLIENT_FILES",
    "Message",
    "SweepRun",
    "Watcher",
    "at_once",
    "execute",
    "how_to_resume",
    "is_finished",
    "remove_leftovers",
    "resume_command",
    "run_folder",
    "stopping",
    "sweep",
]
