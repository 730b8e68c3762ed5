"""Values that are one JSON object each, and nothing else.

Spark's `from_json` alone accepts text after a value (`{"a":1} junk`) and reads bytes that are no UTF-8 as
characters. It also reads an empty value like an object of nulls. So the value is read within a frame, as
Avro's is (docs/decoding.md): `{"<frame>":[<value>,{"<frame>":1}]}`. A text that is more than one value makes
another array: with more items, or one that ends before `{"<frame>":1}`. No text can put that item, or another
array, in place of ours, since the name is random.
"""

from __future__ import annotations

from secrets import token_hex

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from topiclake.formats.codec import OWN

_CORRUPT = f"{OWN}corrupt"
#: A name of this process that no producer can know. It is parsed with each value, so it is short.
FRAME = f"_{token_hex(6)}"
#: JSON as RFC 8259 has it.
_STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def framed(text: Column, columns: StructType, **options: str) -> Column:
    """Read texts that may be one JSON object each: `event_of` and `is_single_object` return the result.

    Args:
        text: The texts.
        columns: The fields that are read.
        options: Of Spark's `from_json`, in addition to those that make it read JSON as RFC 8259 has it.
    """
    item = StructType([*columns.fields, StructField(FRAME, IntegerType())])
    frame = StructType([StructField(FRAME, ArrayType(item)), StructField(_CORRUPT, StringType())])
    document = F.concat(F.lit(f'{{"{FRAME}":['), text, F.lit(f',{{"{FRAME}":1}}]}}'))
    return F.from_json(document, frame, _STRICT | {"columnNameOfCorruptRecord": _CORRUPT} | options)


def event_of(frame: Column) -> Column:
    """Return a struct with the fields that were read of each text; null if it begins with no object."""
    return F.get(frame[FRAME], F.lit(0))


def is_single_object(frame: Column) -> Column:
    """Return whether a text is one object, and nothing else, whose fields have the types of their columns."""
    items = frame[FRAME]
    has_end = F.equal_null(F.get(items, F.lit(1))[FRAME], F.lit(1)) & F.equal_null(F.size(items), F.lit(2))
    return has_end & frame[_CORRUPT].isNull() & F.get(items, F.lit(0)).isNotNull()
