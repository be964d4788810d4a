"""A fault that the schema found in a params file, as one line: file key, value got, value expected."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from toppgate.scalars import NAME, WORDS
from toppgate.schema import Params

Location = tuple[int | str, ...]

_UNKNOWN = ("extra_forbidden", "invalid_key")
_ABSENT = ("missing", "union_tag_not_found")

#: What pydantic's errors ask for, in a few words; what is not listed speaks for itself.
_EXPECTED = {
    "missing": "this key",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a string",
    "string_unicode": "a string of Unicode characters",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "literal_error": "{expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "union_tag_not_found": "this key",
    "value_error": "{error}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a string that is not empty",
    "string_too_long": "at most {max_length} characters",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
}


def explain(error: ValidationError, values: Any, model: type[BaseModel] = Params) -> str:
    """Return one line for the first fault, an unknown key before others; the number of further ones is said.

    ``model`` is what the values were held to.
    """
    faults = error.errors(include_url=False)
    fault = next((one for one in faults if one["type"] in _UNKNOWN), faults[0])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    location = (*fault["loc"], "kind") if fault["type"].startswith("union_tag") else fault["loc"]
    where = _place(location, values, absent=fault["type"] in (*_ABSENT, *_UNKNOWN))
    return f"{where}: {_unknown(fault['loc'], model) if fault['type'] in _UNKNOWN else _mismatch(fault)}{more}"


def _place(location: Location, values: Any, *, absent: bool) -> str:
    """Return the path of a fault.  A case is named by its id; pydantic's union tags, which are no keys, are left out.

    ``absent`` says that the last step names a key that need not be in the data.
    """
    parts: list[str] = []
    here = values
    for number, step in enumerate(location):
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            here = here[step]
            name = here.get("id") if isinstance(here, dict) else None
            parts.append(f"[{name if isinstance(name, str) and re.fullmatch(NAME, name) else step}]")
        elif isinstance(here, dict) and step in here:
            here = here[step]
            parts.append(f".{step}")
        elif absent and number == len(location) - 1:
            parts.append(f".{step}")
    return "".join(parts).removeprefix(".") or "the file"


def _mismatch(fault: Mapping[str, Any]) -> str:
    expected = _expected(fault)
    if fault["type"] == "union_tag_invalid":
        return f"got {_short(fault['ctx']['tag'])}, expected {expected}"
    if fault["type"] in _ABSENT:
        return f"got nothing, expected {expected}"
    bare = fault["type"] == "string_type" and not isinstance(fault["input"], dict | list | None)
    hint = "; write it in quotes, since YAML 1.1 and 1.2 read bare values differently" if bare else ""
    return f"got {_short(fault['input'])}, expected {expected}{hint}"


def _expected(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "string_pattern_mismatch":
        return WORDS[fault["ctx"]["pattern"]]
    words = _EXPECTED.get(fault["type"])
    return fault["msg"] if words is None else words.format_map(fault.get("ctx", {}))


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python will write
        text = "a huge number"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# ---------------------------------------------------------------------------------------------- the nearest known key


def _unknown(location: Location, model: type[BaseModel]) -> str:
    near = difflib.get_close_matches(str(location[-1]), _known_keys(location[:-1], model), n=1, cutoff=0.6)
    return "unknown key" + (f"; did you mean {near[0]!r}?" if near else "")


def _known_keys(location: Location, model: type[BaseModel]) -> list[str]:
    """Return the keys that may stand at a place, which is given as pydantic gives it: with union tags."""
    models: list[type[BaseModel]] = [model]
    for step in location:
        inside = [found for model in models if step in model.model_fields for found in _models_of(model, str(step))]
        tagged = [model for model in models if step in _kinds(model)]
        models = inside or tagged or models
    return sorted({name for model in models for name in model.model_fields})


def _models_of(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    return list(_models(model.model_fields[name].annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
