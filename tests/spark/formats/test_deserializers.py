"""Values that a user's own function reads."""

from __future__ import annotations

import struct
import zipfile

import pytest
from py4j.protocol import Py4JJavaError

from tests.spark.formats import user_deserializer
from topiclake.errors import ConfigError
from topiclake.formats import deserializers
from topiclake.formats.declared import DeclaredFormat, columns_of

NAME = "tests.spark.formats.user_deserializer:semicolons"
DDL = "id INT NOT NULL, name STRING, score DOUBLE"
KAFKA = "org.apache.kafka.common.serialization."
ORDERS = """
package com.example;
public class Orders implements org.apache.kafka.common.serialization.Deserializer {
  private String separator = ";";
  public void configure(java.util.Map given, boolean isKey) {
    if (given.containsKey("separator")) separator = (String) given.get("separator");
  }
  public Object deserialize(String topic, byte[] data) {
    String text = new String(data);
    if (text.length() == 0) return null;
    if (text.equals("cut")) throw failed("cut", new java.io.EOFException());
    if (text.equals("away")) throw failed("away", new java.net.ConnectException("refused"));
    int at = text.indexOf(separator);
    java.util.HashMap made = new java.util.HashMap();
    made.put("id", Integer.valueOf(text.substring(0, at)));
    made.put("name", text.substring(at + 1));
    return made;
  }
  private static RuntimeException failed(String why, Throwable cause) {
    return new org.apache.kafka.common.errors.SerializationException(why, cause);
  }
}
"""


@pytest.fixture(scope="module")
def values(spark):
    return DeclaredFormat("custom", columns_of(DDL), deserializer=NAME)


def decoded(values, records):
    rows = values.decode(records).withColumn("detail", values.detail()).orderBy("offset").collect()
    return [(row["reason"], row["detail"] if row["reason"] != "ok" else tuple(row["event"])) for row in rows]


@pytest.mark.usefixtures("spark")
def test_each_value_is_what_the_function_gives_or_says_what_it_raised(values, kafka_records):
    given = ["1;Jürgen".encode("latin-1"), b"2;", b"x;y", b"", None, b"3;nan", b"!", b"99999999999;big"]
    found = decoded(values, kafka_records(given))
    assert found[:2] == [("ok", (1, "Jürgen", 1.5)), ("ok", (2, None, 1.5))]
    assert [reason for reason, _ in found[2:]] == [
        "undecodable",
        "undecodable",
        "tombstone",
        "undecodable",
        "undecodable",
        "undecodable",
    ]
    for (_, detail), wanted in zip(
        found[2:],
        [
            "ValueError: invalid literal for int() with base 10: 'x'",
            "ValueError: not enough values to unpack (expected 2, got 1)",
            "the value is null",
            "ValueError: Out of range float values are not JSON compliant",
            "ValueError: the deserializer gave 0 objects for 1 values",
            "field id is 99999999999, no integer",
        ],
        strict=True,
    ):
        assert wanted in detail


def test_right_values_are_given_together_and_each_once(spark, kafka_records, tmp_path):
    calls = tmp_path / "calls"
    calls.touch()

    # As a notebook's own: it has no module that a worker could import, so Spark ships it.
    def counted(some):
        with calls.open("a") as file:
            file.write(f"{len(some)}\n")
        return [{"id": int(one)} for one in some]

    records = kafka_records([str(number).encode() for number in range(100)]).coalesce(1)
    made = records.select(deserializers.deserialized(counted, records["value"]).alias("made"))
    twice = made.where("made.text IS NOT NULL").selectExpr("made.text AS a", "upper(made.text) AS b")
    assert len(twice.collect()) == 100
    assert calls.read_text() == "100\n"


@pytest.mark.parametrize(
    ("name", "reason", "why"),
    [
        ("tests.spark.formats.user_deserializer:unmarked", "unmarked", ""),
        ("os:system", "unmarked", ""),
        ("tests.spark.formats.user_deserializer:other", "missing", "other"),
        ("no.such.module:read", "missing", "No module named 'no'"),
    ],
)
def test_only_marked_functions_are_called(name, reason, why):
    with pytest.raises(ConfigError, match=why) as raised:
        deserializers.load(name)
    assert raised.value.fields == {"deserializer": name, "reason": reason}


def test_a_marked_function_is_found_by_its_name():
    assert deserializers.load(NAME) is user_deserializer.semicolons


def of_class(name, ddl=DDL, **config):
    return DeclaredFormat(
        "custom", columns_of(ddl), deserializer=KAFKA + name, deserializer_config=tuple(config.items())
    )


def test_a_kafka_class_reads_values_as_it_is_configured(kafka_records):
    latin = of_class("StringDeserializer", **{"value.deserializer.encoding": "ISO-8859-1"})
    records = kafka_records(['{"id":1,"name":"Jürgen"}'.encode("latin-1"), None, b"{"])
    assert decoded(latin, records) == [
        ("ok", (1, "Jürgen", None)),
        ("tombstone", "the value is null"),
        (
            "undecodable",
            "no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ]


def test_what_a_kafka_class_raises_is_the_reason_and_what_is_no_object_is_none(kafka_records):
    found = decoded(of_class("DoubleDeserializer"), kafka_records([struct.pack(">d", 1.5), b"short"]))
    assert found == [
        ("undecodable", "the value is 1.5, no object"),
        ("undecodable", "SerializationException: Size of data received by Deserializer is not 8"),
    ]


@pytest.fixture(scope="module")
def orders_jar(spark, tmp_path_factory):
    """A jar with a class of a user's own, compiled by what Spark compiles its plans with."""
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(ORDERS)
    jar = tmp_path_factory.mktemp("jar") / "orders.jar"
    with zipfile.ZipFile(jar, "w") as file:
        for name, code in dict(compiler.getBytecodes()).items():
            file.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    spark.sql(f"ADD JAR '{jar}'")


@pytest.mark.usefixtures("orders_jar")
def test_a_class_from_a_users_jar_reads_values_and_a_service_that_is_away_fails_the_query(
    spark, kafka_records
):
    deserializers.require_class(spark, "com.example.Orders", {})
    orders = DeclaredFormat(
        "custom",
        columns_of(DDL),
        deserializer="com.example.Orders",
        deserializer_config=(("separator", "|"),),
    )
    found = decoded(orders, kafka_records([b"1|one", b"2|", b"", b"cut", b"x|y"]))
    assert found[:2] == [("ok", (1, "one", None)), ("ok", (2, "", None))]
    assert [(reason, detail.partition(":")[0]) for reason, detail in found[2:]] == [
        ("undecodable", "the deserializer returns null"),
        ("undecodable", "SerializationException"),
        ("undecodable", "NumberFormatException"),
    ]
    with pytest.raises(
        Py4JJavaError, match=r"com\.example\.Orders fails now: .*SerializationException: away"
    ):
        decoded(orders, kafka_records([b"1|one", b"away"]))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no.such.Reader", "the deserializer no.such.Reader cannot be used: .*ClassNotFoundException"),
        (
            "java.util.ArrayList",
            "java.util.ArrayList cannot be used: .*it is no org.apache.kafka.*Deserializer",
        ),
        (f"{KAFKA}Deserializer", "Deserializer cannot be used: .*NoSuchMethodException"),
        (f"{KAFKA}StringDeserializer", "StringDeserializer cannot be used: .*Unsupported encoding nonsense"),
    ],
)
def test_only_kafka_classes_that_are_there_are_used(spark, name, why):
    with pytest.raises(ConfigError, match=why) as raised:
        deserializers.require_class(spark, name, {"value.deserializer.encoding": "nonsense"})
    assert (raised.value.fields["deserializer"], raised.value.fields["reason"]) == (name, "refused")
