"""Archives of datasets, unpacked whole or not at all, and never outside of their folder."""

from __future__ import annotations

import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from unskew.data.bounded import TooLargeError, most_unpacked, open_zip
from unskew.errors import UserError
from unskew.files import put

MOST_MEMBERS = 1_000_000
"""Files in one archive: the largest here holds 270,000."""
CHUNK = 1 << 18


def is_unpacked(target: Path, names: tuple[str, ...]) -> bool:
    """Say whether the folder holds all of `names`; raise a UserError if it holds some but not all."""
    if not target.exists() or not any(target.iterdir()):
        return False
    for name in names:
        if not (target / name).exists():
            raise UserError(f"{target} is there but lacks {name}: move it away and fetch again.")
    return True


def unpack(archive: Path, target: Path, names: tuple[str, ...]) -> None:
    """Unpack an archive next to `target`, and when it is complete rename it to `target`: the top of the
    archive, or the folder in it that holds `names`."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        content = Path(temporary) / "content"  # only its owner may read the temporary folder itself
        content.mkdir()
        try:
            _extract(archive, content)
        except UserError:
            raise
        except (
            *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
            *(EOFError, ValueError, RuntimeError),
        ) as error:
            raise UserError(f"{archive} cannot be unpacked ({error}): delete it and fetch again.") from error
        for top in (content, *sorted(path for path in content.iterdir() if path.is_dir())):
            if all((top / name).exists() for name in names):
                if target.exists():
                    target.rmdir()  # it is empty: `is_unpacked` has looked
                put(top, target)
                return
    raise UserError(f"{archive} does not hold {', '.join(names)}: its publisher has changed it.")


def _extract(archive: Path, content: Path) -> None:
    """Write the files of an archive into the folder `content`, up to the limits on their number and size."""
    limit, done = most_unpacked(archive.stat().st_size), 0
    for number, (name, file) in enumerate(members(archive)):
        if number >= MOST_MEMBERS:
            raise TooLargeError(f"it holds more than {MOST_MEMBERS:,} files")
        path = inside(content, name, archive)
        if file is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            while block := file.read(CHUNK):
                done += len(block)
                if done > limit:
                    raise TooLargeError(f"it unpacks to more than {limit:,} bytes")
                out.write(block)


def members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the names and contents of an archive's files, and folders with None; refuse anything else."""
    if archive.suffix == ".zip":
        with open_zip(archive) as packed:
            for info in packed.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise UserError(f"{archive} holds '{info.filename}', a link: it is not unpacked.")
                if info.is_dir():
                    yield info.filename, None
                else:
                    with packed.open(info) as file:
                        yield info.filename, file
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()) or member.issparse():
                raise UserError(f"{archive} holds '{member.name}', a link or device: it is not unpacked.")
            yield member.name, tar.extractfile(member) if member.isfile() else None


def inside(folder: Path, name: str, archive: Path) -> Path:
    """Return the path in `folder` for an archive's file; refuse a name that leads out of the folder."""
    pure = PurePosixPath(name)
    if not name.isprintable() or PureWindowsPath(name).is_reserved():
        raise UserError(
            f"{archive} holds {name!r}, which is no valid file name on every system: it is not unpacked."
        )
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or PureWindowsPath(name).drive:
        raise UserError(f"{archive} holds '{name}', which leads out of its folder: it is not unpacked.")
    return folder / pure
