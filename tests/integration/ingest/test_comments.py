"""What a schema says of its records and fields, as comments of the table, on the embedded broker."""

import json

import pytest

from tests.support.numbers_topic import Numbers, right


@pytest.mark.thorough("comments are no part of the records")
def test_what_a_schema_says_of_its_fields_is_the_comment_of_table_and_columns(connected, tmp_path):
    numbers = Numbers(connected, tmp_path)
    numbers.topic("a")
    fields = [{"name": "n", "type": "long", "doc": "How many: 'n'"}]
    documented = {"type": "record", "name": "N", "doc": "A number.", "fields": fields}
    numbers.registry.register(f"{numbers.name}-a-value", json.dumps(documented))
    numbers.ingested(numbers.settings())
    note = {"name": "note", "type": "string", "default": "", "doc": "What it is."}
    second = numbers.registry.register(
        f"{numbers.name}-a-value", json.dumps(documented | {"fields": [*fields, note]})
    )
    numbers.send("a", right(second, 1) + b"\x02x")
    numbers.ingested(numbers.settings())
    table = f"delta.`{numbers.folder}/table`"
    columns = {row["col_name"]: row["comment"] for row in numbers.spark.sql(f"DESCRIBE {table}").collect()}
    assert (columns["n"], columns["note"]) == ("How many: 'n'", "What it is.")
    (detail,) = numbers.spark.sql(f"DESCRIBE DETAIL {table}").collect()
    assert detail["description"] == "A number."
