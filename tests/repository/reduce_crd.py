"""Reduce a CustomResourceDefinition to a JSON Schema that refuses unknown fields, as the API server does.

    python -m tests.repository.reduce_crd <crd.yaml> <version of its project> > data/<kind>.json

Kept is what a manifest is checked by: names, types, enums, bounds, required. Descriptions are not, nor what
an operator writes (`status`); subtrees that occur more than once stand in `$defs`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

KEPT = ("type", "enum", "required", "minimum", "maximum", "pattern", "minLength", "maxLength", "minItems")
#: A subtree of fewer characters is written out each time.
WORTH_A_NAME = 300
#: The API server's own fields of any resource, of which a manifest needs these.
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def reduced(crd: dict[str, Any], release: str) -> dict[str, Any]:
    """The schema of a manifest of the CRD's newest served version, the first in its list."""
    version = next(one for one in crd["spec"]["versions"] if one["served"])
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    schema["properties"] |= {
        "apiVersion": {"const": f"{crd['spec']['group']}/{version['name']}"},
        "kind": {"const": crd["spec"]["names"]["kind"]},
        "metadata": METADATA,
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    source = f"{crd['metadata']['name']} of {release}, Apache-2.0, reduced by tests/repository/reduce_crd.py"
    return {"$comment": source, **shared(schema)}


def closed(node: dict[str, Any]) -> dict[str, Any]:
    """A schema as JSON Schema has it: an object with `properties` has no others, unless it says so."""
    found = {key: node[key] for key in KEPT if key in node}
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if "items" in node:
        found["items"] = closed(node["items"])
    if "properties" in node:
        found["properties"] = {name: closed(inner) for name, inner in node["properties"].items()}
        found["additionalProperties"] = bool(node.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = closed(node["additionalProperties"])
    return found


def shared(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, in which each large subtree stands once."""
    counts: Counter[str] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, dict):
            counts[json.dumps(node)] += 1
        for inner in _below(node):
            count(inner)

    definitions: dict[str, Any] = {}

    def named(node: Any) -> Any:
        text = json.dumps(node)
        if isinstance(node, dict):
            inside = {key: named(inner) for key, inner in node.items()}
            # A property may be called `type`; the type of a schema is text.
            is_schema = isinstance(node.get("type"), str)
            if not is_schema or counts[text] < 2 or len(text) < WORTH_A_NAME:
                return inside
            name = hashlib.sha256(text.encode()).hexdigest()[:8]
            definitions[name] = inside
            return {"$ref": f"#/$defs/{name}"}
        return [named(inner) for inner in node] if isinstance(node, list) else node

    count(schema)
    return named(schema) | {"$defs": definitions}


def _below(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []


if __name__ == "__main__":
    crd = yaml.safe_load(Path(sys.argv[1]).read_text("utf-8"))
    json.dump(reduced(crd, sys.argv[2]), sys.stdout, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")
