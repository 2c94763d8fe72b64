"""Typed settings. Every wrong key or value raises an error of one sentence."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from unskew.errors import UserError, nearest


class Spec(BaseModel):
    """Settings that can be written in a file: frozen, without unknown keys, and without NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        fields = type(self).model_fields
        for name, value in values.items():
            # Pydantic would read true as the number 1, but refuses the text "true".
            if isinstance(value, bool) and name in fields and fields[name].annotation is not bool:
                values[name] = str(value).lower()
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(_sentence(type(self), error)) from None


def _sentence(spec: type[Spec], error: ValidationError) -> str:
    """Return what is wrong with the first wrong setting, as a sentence."""
    first = error.errors(include_url=False)[0]
    inner = first.get("ctx", {}).get("error")
    path = _path(first["loc"])
    if isinstance(inner, UserError):  # from a nested Spec, whose error is a sentence already
        return f"{path}.{inner}" if path else str(inner)
    if first["type"] == "extra_forbidden":
        tables = [name for name, field in spec.model_fields.items() if path in _keys(field.annotation)]
        if len(tables) == 1:
            return f"{path} is not a setting: did you mean '{tables[0]}.{path}'?"
        near = nearest(path, spec.model_fields)
        hint = f"did you mean '{near}'?" if near else f"choose one of {', '.join(spec.model_fields)}."
        return f"{path} is not a setting: {hint}"
    if first["type"] == "missing":
        return f"{path} is missing: give it a value."
    if first["type"] == "model_type":
        nested: Any = spec.model_fields[path].annotation
        key = next(iter(nested.model_fields))
        return f"{path} is {first['input']!r} but should be a table: set its keys, such as {path}.{key}."
    return f"{path} {is_but_should_be(error)}"


def _keys(annotation: Any) -> dict[str, Any]:
    """Return the settings of a table; none for a setting that is a value."""
    is_table = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation.model_fields if is_table else {}


WORDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of reasonable size",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "literal_error": "{expected}",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}
"""What a value should be, by the type of Pydantic's error."""


def is_but_should_be(error: ValidationError) -> str:
    """Return what is wrong with the first wrong value, such as "is 0 but should be at least 1." If several
    kinds of values are allowed, name all of them."""
    errors = error.errors(include_url=False)
    first, path = errors[0], _path(errors[0]["loc"])
    ways = [
        WORDS[each["type"]].format(**each.get("ctx", {}))
        if each["type"] in WORDS
        else each["msg"].removeprefix("Input should be ")
        for each in errors
        if _path(each["loc"]) == path
    ]
    # A number may have come as text, from a flag. One that is out of bounds was read as a number.
    out_of_bounds = first["type"].startswith(("greater", "less"))
    shown = str(first["input"]) if out_of_bounds else repr(first["input"])
    return f"is {shown} but should be {' or '.join(ways)}."


def _path(loc: tuple[int | str, ...]) -> str:
    """Return the path of a setting, without the branch of a union that Pydantic adds to it ('literal[...]',
    'constrained-int'), since the user has not written that."""
    return ".".join(
        str(part)
        for part in loc
        if not (
            isinstance(part, str)
            and ("[" in part or part.startswith("constrained-") or part in ("int", "float"))
        )
    )
