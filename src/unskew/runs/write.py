"""Write files whole, and say in one sentence why a file cannot be written."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from unskew.errors import UserError
from unskew.files import write_file


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see all of it or nothing. Raise UserError with one sentence if it cannot
    be written."""
    with writing(path):
        write_file(path, content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn an error of writing to `path` into one sentence that says why and what to do."""
    try:
        yield path
    except OSError as error:
        folder = path if path.is_dir() else path.parent
        begun = any((folder / name).exists() for name in ("experiment.toml", "plan.json", "search.json"))
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            todo = f"make room there, and {'continue with unskew resume' if begun else 'try again'}"
        else:
            todo = "let it be written to" if begun else "choose another folder with --out"
        raise UserError(f"cannot write to {path} ({error.strerror}): {todo}.") from None
    except UnicodeEncodeError as error:  # of a path that was given, quoted in a record
        before, after = error.object[: error.start], error.object[error.start :]
        name = re.split(r'["\n]', before)[-1] + re.split(r'["\n]', after)[0]
        sentence = (
            f"cannot write to {path} ('{name}' is not {error.encoding.upper()} text): rename that file or "
            "folder, or give another."
        )
        raise UserError(sentence.encode(errors="replace").decode()) from None  # it may get into a record
