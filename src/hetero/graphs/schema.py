"""The JSON Schema of hetero-graph/1.

In: nothing. Out: a document. What a schema cannot say (ids that exist, no cycle) document.py checks.
"""

from __future__ import annotations

from typing import Any

from hetero.graphs.document import BEYOND, FORMAT
from hetero.model.graph import UNLIMITED_BYTES

__all__ = ["graph_schema"]

_ID = {"type": "string", "minLength": 1}
_SECONDS = {"type": "number", "minimum": 0, "exclusiveMaximum": BEYOND}
_BYTES = {"type": "integer", "minimum": 0, "maximum": UNLIMITED_BYTES}


def _rows(needed: dict[str, Any], more: dict[str, Any] | None = None, least: int = 0) -> dict[str, Any]:
    row = {
        "type": "object",
        "properties": {**needed, **(more or {})},
        "required": list(needed),
        "additionalProperties": False,
    }
    return {"type": "array", "items": row, "minItems": least}


def graph_schema() -> dict[str, Any]:
    """Return the schema, draft 2020-12."""
    link = {"src": _ID, "dst": _ID, "bandwidth_bytes_per_s": {**_SECONDS, "exclusiveMinimum": 0}}
    seconds = {"type": "object", "additionalProperties": _SECONDS, "minProperties": 1}
    properties = {
        "format": {"const": FORMAT},
        "devices": _rows({"id": _ID, "memory_node": _ID}, {"kind": {"type": "string"}}, least=1),
        "memory_nodes": _rows({"id": _ID}, {"capacity_bytes": {**_BYTES, "type": ["integer", "null"]}}),
        "links": _rows({**link, "latency_s": _SECONDS}, {"bus": {"type": "string"}}),
        "tasks": _rows({"id": _ID, "seconds": seconds}),
        "edges": _rows({"src": _ID, "dst": _ID}, {"bytes": _BYTES}),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        "type": "object",
        "properties": {**properties, "name": {"type": "string"}},
        "required": list(properties),
        "additionalProperties": False,
    }
