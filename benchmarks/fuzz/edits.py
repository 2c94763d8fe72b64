"""Edits of valid examples, drawn by hypothesis."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w
from hypothesis import strategies as st

from benchmarks.fuzz.target import Format, Target

TOKENS = (
    b"", b"\0", b"\n", b'"', b"'", b"=", b"[", b"]", b"{", b"}", b",", b":", b"+", b"-", b".", b"..", b"/",
    b"<",
    b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 8,
    b"\xff" * 7 + b"\x7f",
    b"0", b"-1", b"1e999", b"nan", b"inf", b"-inf", b"9" * 30, b"9" * 5000, b"1e30", b"0x10", b"1_0",
    b"true", b"none",
    "é".encode(), "\u2028".encode(), "\ud7ff\U0001f600".encode(), b"\xed\xa0\x80",
    b"</script><script>alert(1)</script>",
    b"\x1b[2J", b"$(touch owned)", b"=cmd|' /C calc'!A0", b"%s%n{0}", b"../../../../etc/passwd", b"/dev/zero",
    b"x" * 300, b"x" * 70000, b"[" * 100_000, b'{"a":' * 50_000, b"a." * 2000, b"(" * 5000,
    b"\x8c\x02os\x8c\x06system\x93",
    b"cos\nsystem\n(S'touch owned'\ntR.", b"r\xff\xff\xff\x7f", b"\x96" + b"\xff" * 7 + b"\x00",
    b"\x8e\xff\xff\xff\xff\0\0\0\0",
    b"cbuiltins\nrange\n(I0\nI999999999999\ntR", b"0" * 100, b" " * 100, b"#", b"\t", b"\r", b"\\",
    b"\\u0000", b"\\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, -0.5, 1e308, 1e-320,
    "", "x", "a" * 10_000,
    "\0", "\u2028", "\ud800", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$x^2$",
    "${x}", "%s", "../..",
    "/etc/passwd", "=1+1", "\x1b[2J", "é", "1", "1e5", "nan", "all", "auto", "none", [], {}, [[]], [None],
    [0], ["x"], {"a": 1}, [1.5],
    {"": {}}, {"name": "x"}, {"name": "evil.py"}, "evil.py", "os.system", [[0] * 3] * 3, list(range(50)),
    "@raw NaN", "@raw Infinity", "@raw 1e999", "@raw " + "9" * 5000, "@raw " + "[" * 100_000,
    '@raw {"a":1,"a":2}',
    "@raw " + "[" * 60 + "]" * 60, "@raw 1979-05-27T07:32:00Z", "@raw nan", "@raw 0x10",
)  # fmt: skip

Edit = tuple[int, int, int, int]
"""The kind of edit, two numbers that say where and how, and the number of a token or a value."""
PLACES = st.integers(0, 2**16 - 1)
BYTE_EDITS = st.tuples(st.integers(0, 8), PLACES, PLACES, st.integers(0, len(TOKENS) - 1))
VALUE_EDITS = st.tuples(st.integers(0, 6), PLACES, PLACES, st.integers(0, len(VALUES) - 1))


def edit_bytes(content: bytes, edit: Edit) -> bytes:
    """Cut, overwrite, insert, delete, repeat or flip some bytes."""
    kind, first, second, chosen_token = edit
    token = TOKENS[chosen_token]
    at = first * (len(content) + 1) >> 16
    if first & 1:  # edit headers more often, although they are short
        at = min(at, (first >> 1) % 64)
    size = second % 17
    match kind:
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([second & 255]) + content[at + 1 :]
        case 2:
            return content[:at] + token + content[at:]
        case 3:
            return content[:at] + token + content[at + len(token) :]
        case 4:
            return content[:at] + content[at + size :]
        case 5:
            return content[:at] + content[at : at + size] * (1 + second % 50) + content[at + size :]
        case 6:
            other = second * (len(content) + 1) >> 16
            return content[:at] + content[other : other + 16] + content[at + 16 :]
        case 7:
            numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
            if not numbers:
                return content + token
            chosen = numbers[second % len(numbers)]
            return content[: chosen.start()] + token + content[chosen.end() :]
        case _:
            return (
                content[:at] + bytes([content[at] ^ (1 << second % 8)]) + content[at + 1 :]
                if at < len(content)
                else b""
            )


Place = tuple[Any, Any]
"""A container, and a key or index in it."""


def places(value: Any) -> Iterator[Place]:
    """Yield all places in nested lists and dictionaries."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield value, key
        yield from places(part)


def edit_value(whole: Any, edit: Edit) -> Any:
    """Replace, delete, rename, repeat or nest a value inside of lists and dictionaries, in place."""
    kind, first, second, chosen_value = edit
    value = copy.deepcopy(VALUES[chosen_value])
    found = list(places(whole))
    if not found:
        return value
    top = [place for place in found if place[0] is whole]
    holder, key = (top if second % 3 == 0 else found)[first % len(top if second % 3 == 0 else found)]
    match kind:
        case 0 | 1:
            holder[key] = value
        case 2:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[f"{key}x" if second & 1 else str(value)[:50]] = holder[key]
        case 3:
            holder.insert(key, holder[key])
        case 4:
            holder[key] = [holder[key]] if second & 1 else {"a": holder[key]}
        case 5:
            other, place = found[second % len(found)]
            if not isinstance(other[place], dict | list):
                holder[key] = other[place]
        case _:
            if isinstance(holder[key], list):
                holder[key] = holder[key][: second % 3] if second & 1 else holder[key] * 2
            else:
                holder[key] = value
    return whole


def raw(text: str) -> str:
    """Replace the strings that begin with @raw by their text without quotes."""
    return re.sub(r'"@raw ((?:[^"\\]|\\.)*)"', lambda match: json.loads(f'"{match[1]}"'), text)


def edited(content: bytes, format: Format, edits: Sequence[Edit], number: int) -> bytes:
    """Return a structured example with edits of its values; `number` chooses the line of JSON lines."""
    match format:
        case "json":
            whole = json.loads(content)
            for edit in edits:
                whole = edit_value(whole, edit)
            return raw(json.dumps(whole)).encode()
        case "lines":
            lines = content.splitlines()
            chosen = number % len(lines)
            lines[chosen] = edited(lines[chosen], "json", edits, number)
            return b"\n".join(lines) + b"\n"
        case _:
            whole = tomllib.loads(content.decode())
            for edit in edits:
                whole = edit_value(whole, edit)
            with contextlib.suppress(
                TypeError, ValueError, AttributeError
            ):  # TOML does not have such a value
                return raw(tomli_w.dumps(whole)).encode("utf-8", "surrogatepass")
            return content


@dataclass(frozen=True)
class Input:
    """The example that is edited, and its edits."""

    number: int
    structured: bool
    byte_edits: Sequence[Edit]
    value_edits: Sequence[Edit]


INPUTS = st.builds(
    Input,
    st.integers(0, 999),
    st.booleans(),
    st.lists(BYTE_EDITS, min_size=1, max_size=3),
    st.lists(VALUE_EDITS, min_size=1, max_size=2),
)


def content_of(target: Target, drawn: Input) -> tuple[int, bytes]:
    """Return the number of the example that an input edits, and its edited content."""
    number = drawn.number % len(target.examples)
    content, format = target.examples[number]
    if format not in ("bytes", "text") and drawn.structured:
        return number, edited(content, format, drawn.value_edits, drawn.number)
    for edit in drawn.byte_edits:
        content = edit_bytes(content, edit)
    return number, content
