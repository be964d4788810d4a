"""The YAML of params files: read strictly as YAML 1.2, written in one form that YAML 1.1 and 1.2 read alike.

papermill reads params files too, by YAML 1.1, where ``1e-3`` is a string, ``no`` is False and a duplicate key takes the
last value (contract, section 2).  So anything that the two could read differently is refused here or never written.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import YAMLError

from toppgate.errors import ParamsError

#: Nesting of mappings and lists; a params file needs about ten levels.
MAX_DEPTH = 32

#: Values, keys included; the largest file that is shipped has some 10,000.  A megabyte of commas holds a million.
MAX_VALUES = 2**17


class _Plain(Composer):
    """Composes a document of plain data.  What it refuses is refused when met, so nothing is ever expanded."""

    values = 0

    def compose_document(self) -> Any:
        start = self.parser.peek_event()
        if start.version is not None or start.tags:
            raise ComposerError(None, None, "directives are not allowed", start.start_mark)
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        if event.anchor or getattr(event, "tag", None):
            raise ComposerError(None, None, "anchors, aliases and tags are not allowed", event.start_mark)
        if getattr(event, "value", None) == "<<" and event.style is None:
            raise ComposerError(None, None, "merge keys are not allowed", event.start_mark)
        self.values += 1
        if self.values > MAX_VALUES:
            raise ComposerError(None, None, f"more than {MAX_VALUES} values", event.start_mark)
        if self.depth >= MAX_DEPTH:
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        return super().compose_node(parent, index)


def parse(text: str, name: str) -> Any:
    """Return the plain data of one YAML 1.2 document.

    Raises ``ParamsError`` that names the file and the line: also for duplicate keys, anchors, aliases, tags, merge
    keys, directives, a second document, data nested deeper than ``MAX_DEPTH``, and more than ``MAX_VALUES`` values.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Plain
    try:
        return yaml.load(text)
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise ParamsError(f"{name}: {where}not plain YAML 1.2: {problem}") from None


def dump(values: Mapping[str, Any]) -> bytes:
    """Return values in freeze's own form: block mappings, JSON scalars and lists, ASCII; a function of them only."""
    return ("\n".join(_block(values, "")) + "\n").encode("ascii")


def _block(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        name = key if key.isascii() and key.isidentifier() else _flow(key)
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from _block(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(entry, dict) for entry in item):
            yield f"{indent}{name}:"
            for entry in item:
                first, *rest = _block(entry, indent + "  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{name}: {_flow(item)}"


def _flow(value: Any) -> str:
    """JSON, but for what it leaves bare or writes as two surrogates, which YAML 1.1 does not join: YAML's escapes."""
    return re.sub(r"[^\x20-\x7e]", _escape, json.dumps(value, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
