"""A check of Avro records by fastavro, for a JVM without limits that six bytes could end.

Clients of Spark Connect may not be able to set the JVM's options. There a worker of Python first reads each
record by the schema that Spark's decoder would use. The package fastavro reads no more bytes than the record
has. Spark then decodes only records that fastavro has read from their first byte to their last.

Workers import this.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F

from topiclake.formats.avro.diagnosis import has_free_items
from topiclake.formats.codec import END, END_FIELD

#: Properties of a schema that have no part in the bytes of a value. By a logical type, fastavro would refuse
#: a time that Spark accepts.
_NOT_IN_BYTES = {"logicalType", "default", "aliases", "doc", "order"}


def checked(payload: Column, schema: Column, writers: Mapping[bytes, str]) -> Column:
    """Return a payload that is one whole record and END, and null for another one.

    Args:
        payload: The column of `framed_payload`.
        schema: The key in `writers` of the schema that it claims to have.
        writers: Framed Avro schemas by the bytes that name them.
    """
    texts = {key.hex(): _of_bytes(text) for key, text in writers.items()}

    def run(payloads: pd.Series, names: pd.Series) -> pd.Series:
        schemas = {key: parsed for key, text in texts.items() if (parsed := _parsed(text)) is not None}
        return pd.Series(
            [
                payload is not None and name is not None and _is_whole(payload, schemas.get(name.hex()))
                for payload, name in zip(payloads, names, strict=True)
            ],
            dtype="bool",
        )

    pandas_udf: Any = F.pandas_udf  # its overloads know no type as text
    # Called once for each record, wherever Spark would like to have it twice.
    return F.when(pandas_udf(run, "boolean").asNondeterministic()(payload, schema), payload)


def _of_bytes(schema: str) -> str:
    def relevant(node: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in node.items() if name not in _NOT_IN_BYTES}

    return json.dumps(json.loads(schema, object_hook=relevant))


def _parsed(schema: str) -> Any:  # noqa: ANN401 (fastavro's own)
    tree = json.loads(schema)
    # A few bytes can claim 2⁶³ items that take none.
    if has_free_items(tree):
        return None
    try:
        return fastavro.parse_schema(tree)
    except Exception:  # noqa: BLE001 (a schema that fastavro does not know has no record that it has read)
        return None


def _is_whole(payload: bytes, schema: Any) -> bool:  # noqa: ANN401
    if schema is None:
        return False
    stream = io.BytesIO(payload)
    try:
        # Spark accepts a text that is not UTF-8.
        record: Any = fastavro.schemaless_reader(stream, schema, None, handle_unicode_errors="replace")
    except Exception:  # noqa: BLE001 (whatever fastavro raises, the record is not whole)
        return False
    return record[END_FIELD] == END and stream.tell() == len(payload)
