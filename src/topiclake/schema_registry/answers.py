"""Answers of a schema registry, read from JSON that may be something else (a ValueError)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

Item = TypeVar("Item", int, str)


class Reference(NamedTuple):
    """Where a schema that another one uses is registered."""

    subject: str
    version: int
    #: How the schema that uses it calls it.
    name: str = ""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema by its id, as it was registered.

    Attributes:
        schema_id: The id; None if a registry that was asked by GUID does not return it.
        schema_type: AVRO, JSON or PROTOBUF.
        schema: The text.
        guid: The GUID; None if the registry does not return one.
        references: Name and text of each schema that it refers to, directly or not, dependencies first.
    """

    schema_id: int | None
    schema_type: str
    schema: str
    guid: str | None = None
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SubjectVersion:
    """One version of a subject; schema and references are those of `RegisteredSchema`."""

    subject: str
    version: int
    schema_id: int
    schema_type: str
    schema: str
    guid: str | None = None
    references: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        is_json = self.schema_type != "PROTOBUF"
        text = json.dumps(json.loads(self.schema), indent=2, ensure_ascii=False) if is_json else self.schema
        return f"subject {self.subject}, version {self.version}, id {self.schema_id}\n{text}"


class SchemaResponse(NamedTuple):
    """A schema in an answer of the registry; None for the parts that the answer lacks."""

    schema_id: int | None
    schema_type: str
    schema: str
    references: tuple[Reference, ...]
    guid: str | None


def schema(answer: Any) -> SchemaResponse:  # noqa: ANN401 (JSON)
    """Read a schema that was asked for by id, GUID, or subject and version."""
    if not isinstance(answer, dict):
        raise ValueError("not a schema")
    references = answer.get("references") or []
    if not isinstance(references, list) or not all(isinstance(reference, dict) for reference in references):
        raise ValueError("references are not a list of objects")
    return SchemaResponse(
        None if answer.get("id") is None else _member(answer, "id", int),
        # Registries leave out the type of Avro schemas.
        "AVRO" if answer.get("schemaType") is None else _member(answer, "schemaType", str),
        _member(answer, "schema", str),
        tuple(
            Reference(
                _member(reference, "subject", str),
                _member(reference, "version", int),
                str(reference.get("name", "")),
            )
            for reference in references
        ),
        None if answer.get("guid") is None else _member(answer, "guid", str),
    )


def version(answer: Any) -> SchemaResponse:  # noqa: ANN401 (JSON)
    """Read a version of a subject, which comes with its id."""
    response = schema(answer)
    if response.schema_id is None:
        raise ValueError("no id in it")
    return response


def new_id(answer: Any) -> int:  # noqa: ANN401 (JSON)
    """Read the id of a schema that was registered."""
    return _member(answer if isinstance(answer, dict) else {}, "id", int)


def list_of(kind: type[Item]) -> Callable[[Any], list[Item]]:
    """Return a function that reads a list of numbers or names."""

    def read(answer: Any) -> list[Item]:  # noqa: ANN401 (JSON)
        if not isinstance(answer, list) or not all(type(item) is kind for item in answer):
            raise ValueError("not a list of names or numbers")
        return answer

    return read


def _member(answer: dict[str, Any], name: str, kind: type[Item]) -> Item:
    value = answer.get(name)
    if type(value) is not kind:
        raise ValueError(f"no {name} in it")
    return value


def references(
    response: SchemaResponse, look_up: Callable[[Reference], SchemaResponse | None]
) -> tuple[tuple[str, str], ...]:
    """Return name and text of each schema that one refers to, directly or not, dependencies first.

    Args:
        response: A schema in an answer of the registry.
        look_up: Returns a schema that is referred to, or None if the registry no longer holds it. Its type
            then stays without a definition.
    """
    texts: dict[Reference, str] = {}

    def collect(references: Iterable[Reference]) -> None:
        for reference in references:
            if reference not in texts and (schema := look_up(reference)):
                collect(schema.references)
                texts[reference] = schema.schema

    collect(response.references)
    return tuple((reference.name, text) for reference, text in texts.items())


def canonical(key: int | str) -> int | str:
    """Return an id as a signed number of 32 bits, as registries take it, and a GUID in its usual spelling."""
    if isinstance(key, str):
        return str(UUID(key))
    return key - 2**32 if key >= 2**31 else key


def refusals(response: Any) -> list[str]:  # noqa: ANN401 (JSON)
    """Return why a schema is not compatible; empty if it is compatible."""
    if not isinstance(response, dict) or not isinstance(response.get("is_compatible"), bool):
        raise ValueError(f"no result of the compatibility check: {str(response)[:100]}")
    if response["is_compatible"]:
        return []
    return [" ".join(str(message).split()) for message in response.get("messages") or ["no reason is given"]]
