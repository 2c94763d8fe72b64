"""Hashes of the user's own files, which must not change between the runs of an experiment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from unskew import models
from unskew.data.importers import Import
from unskew.data.partitions import parse_skew
from unskew.errors import UserError
from unskew.experiment.settings import MethodSpec, ModelSpec, SkewSpec, skew_code
from unskew.notation import path_of
from unskew.user_code import is_code, sha256_of, split_name


def code_sha256(name: str, before: str, what: str) -> str:
    """Return the hash of the file that defines a model or a partition; an empty text if it is unskew's
    own."""
    if not is_code(name):
        return ""
    path = split_name(name)[0]
    return _same_sha256(path, before, f"{what}.sha256")


def method_sha256(spec: MethodSpec) -> str | None:
    """Return the hash of the method's own files, or None if all of it is unskew's own."""
    files = [Path(name) for name in spec.files()]
    if not files:
        if spec.sha256:
            raise UserError(f"method.sha256 is given, but method '{spec.name}' is no file: leave it out.")
        return None
    each = [sha256_of(path) for path in files]
    now = each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()
    return _unchanged(" or ".join(map(str, files)), now, spec.sha256, "method.sha256")


def init_sha256(spec: ModelSpec) -> str:
    path = models.weights_file(spec.init) if spec.init else None
    if path is None or not path.is_file():  # refused when it is read
        return ""
    return _same_sha256(path, spec.init_sha256, "model.init_sha256")


def _same_sha256(path: Path, before: str, setting: str) -> str:
    return _unchanged(str(path), sha256_of(path), before, setting)


def _unchanged(what: str, now: str, before: str | None, setting: str) -> str:
    """Return the present hash; refuse it if the experiment has another one."""
    if before and before != now:
        raise UserError(
            f"{what} has changed since the experiment was written ({setting} is {before[:12]}… there and "
            f"{now[:12]}… now): bring back what it was, or take {setting} out for a new experiment."
        )
    return now


def skew_sha256(spec: SkewSpec) -> str:
    """Return the hash of the file that holds a partition or the code that draws it; an empty text if there is
    none."""
    skew = parse_skew(spec.recipe)
    path = path_of(skew.path) if isinstance(skew, Import) else None
    if path is not None and path.is_file():
        return _same_sha256(path, spec.sha256, "skew.sha256")
    return code_sha256(skew_code(spec.recipe), spec.sha256, "skew")
