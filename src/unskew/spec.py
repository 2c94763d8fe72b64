"""Typed settings: every wrong key or value is answered with one sentence."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from unskew.errors import UserError


class Spec(BaseModel):
    """Settings that can be written in a file: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(_sentence(type(self), error)) from None


def _sentence(spec: type[Spec], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    inner = first.get("ctx", {}).get("error")
    path = ".".join(str(part) for part in first["loc"] if not _is_union_branch(part))
    if isinstance(inner, UserError):  # from a nested Spec, which has already found the words
        return f"{path}.{inner}" if path else str(inner)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path, list(spec.model_fields), n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(spec.model_fields)}."
        return f"{path} is not a setting: {hint}"
    if first["type"] == "missing":
        return f"{path} is missing: give it a value."
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{path} is {first['input']!r} but {message}."


def _is_union_branch(part: object) -> bool:
    """Pydantic names the branch of a union in the path ('literal[...]', 'constrained-int'); a user has not
    written that word."""
    return isinstance(part, str) and (
        "[" in part or part.startswith("constrained-") or part in ("int", "float")
    )
