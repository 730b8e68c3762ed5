"""Which schemas a fixed plan knows of its subjects."""

from types import SimpleNamespace

from topiclake.schema_registry.answers import SubjectVersion
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas

VERSIONS = {
    "a-value": [
        SubjectVersion("a-value", 1, 7, "AVRO", '"int"', "g7"),
        SubjectVersion("a-value", 2, 3, "AVRO", '"long"'),
    ],
    "b-value": [SubjectVersion("b-value", 1, 3, "AVRO", '"long"', "g3")],
}


def test_versions_are_listed_by_id_and_guid_the_oldest_first_and_each_once():
    asked = []

    def versions(subject, *, refresh):
        asked.append((subject, refresh))
        return VERSIONS[subject]

    schemas = TopicSchemas(SimpleNamespace(versions=versions), {"value": ("a-value", "b-value")}, Layout())
    listed = schemas.listed("value", refresh=True)
    assert list(listed) == [7, "g7", 3, "g3"]
    assert listed[3] is VERSIONS["a-value"][1]
    assert asked == [("a-value", True), ("b-value", True)]


def test_a_codec_of_each_part_is_made_of_its_schemas():
    made = []

    def codec(schemas, accepts, reader_text):
        made.append((schemas, accepts("reader"), reader_text))
        return len(made)

    of = SimpleNamespace(codec=codec)
    schemas = TopicSchemas(SimpleNamespace(), {"value": ()}, Layout(), format=of)
    codecs = schemas.unite({"value": {1: "schema"}}, lambda part: lambda reader: f"{part} {reader}")
    assert (codecs.value, codecs.key, made) == (1, None, [({1: "schema"}, "value reader", None)])
