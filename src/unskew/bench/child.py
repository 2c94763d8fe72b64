"""Runs Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from unskew.errors import UserError


def child(*arguments: str) -> str:
    """Run Python with these arguments, and return what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise UserError(f"a command of this benchmark failed ({' '.join(last)}): run it by hand to see why.")
    return done.stdout
