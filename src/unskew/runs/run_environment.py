"""Where a run runs."""

from __future__ import annotations

from unskew import record
from unskew.errors import UserError
from unskew.experiment import Resolved
from unskew.machine import machine


def environment(resolved: Resolved) -> record.Environment:
    """Describe the machine and the versions that a run uses, and which experiment it is."""
    where = machine(resolved.trial.pick_device())
    experiment = resolved.experiment
    try:
        changed = experiment.method.changed()
    except UserError:  # a method that was made in Python
        changed = None
    return record.Environment(**vars(where), identity=experiment.identity(), changed=changed)
