"""The file of a checkpoint: a line of JSON, and tensors in the format of safetensors behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unskew.client_tensors import ClientTensors
from unskew.tensor_files import dump, load
from unskew.types import Tensors

VERSION = 3
LONGEST_HEADER = 1 << 16
"""Bytes within which the line of JSON has to end."""


def encode(header: Mapping[str, Any], tensors: Tensors) -> bytes:
    """Return the content of a checkpoint's file. The JSON of header["value"] becomes one of the tensors, and
    the line of JSON has a checksum of everything."""
    value = {**header, "value": None}
    text = json.dumps(header["value"], default=_index)
    encoded = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    body = dump({**tensors, "value": encoded})
    first = {"format": "unskew checkpoint", "version": VERSION, **value, "bytes": len(body)}
    line = json.dumps(first, sort_keys=True).encode()
    digest = hashlib.sha256(line + b"\n" + body).hexdigest()
    return json.dumps({**first, "sha256": digest}, sort_keys=True).encode() + b"\n" + body


def read(path: Path, identity: str) -> tuple[dict[str, Any], Tensors]:
    """Return the header and the tensors of a file, or raise a ValueError that says what is wrong with it. The
    checkpoint has to be of the experiment with this `identity`."""
    content = path.read_bytes()
    line, end, body = content[:LONGEST_HEADER].partition(b"\n")
    if not end:
        raise ValueError("it has no header" if content else "it is empty")
    body = content[len(line) + 1 :]
    try:
        header = json.loads(line)
        kind, digest = header.pop("format"), header.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("its header is damaged") from None
    if kind != "unskew checkpoint":
        raise ValueError("it is no checkpoint")
    if header.get("version") != VERSION:
        raise ValueError(f"its version is {header.get('version')!r}, and this unskew reads version {VERSION}")
    if header.get("bytes") != len(body):
        raise ValueError(f"it has {len(body)} bytes instead of {header.get('bytes')!r}")
    signed = json.dumps({"format": kind, **header}, sort_keys=True).encode()
    if hashlib.sha256(signed + b"\n" + body).hexdigest() != digest:
        raise ValueError("its checksum is wrong")
    if header.get("identity") != identity:
        raise ValueError("it is of another experiment")
    tensors = load(body)
    header["value"] = json.loads(tensors.pop("value").numpy().tobytes())
    return header, tensors


def _index(mapping: ClientTensors) -> Any:
    """Write to disk what clients keep, and return where it lies there."""
    mapping.sync()
    return mapping.index()
