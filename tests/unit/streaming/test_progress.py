"""The frame is the text of a real StreamingQueryException of Spark 4.1.1, shortened where "…" stands.

The texts about lost data and the Java stack are not from a run: they are written after Spark's messages.
"""

import pytest

from topiclake.errors import (
    ConfigError,
    DecodeError,
    IngestError,
    KafkaError,
    NewSchemaError,
    OffsetsLostError,
    SchemaRegistryError,
    StorageError,
)
from topiclake.streaming import progress
from topiclake.streaming.failure import NOT_LISTED, query_failure

TRACEBACK = """\
[STREAM_FAILED] Query [id = 4b90d631-9e4c-4a3a-a676-ef32a6a2aea5, runId = 003d3cb5-e621-4e50] \
terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided \
function in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "…/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "…/pyspark/sql/utils.py", line 165, in call
    raise e
  File "…/ingest.py", line 43, in write_batch
    raise SchemaRegistryError("the registry at x does not answer","check it")
%s
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: gps [id = 4b90d631-9e4c-4a3a-a676-ef32a6a2aea5, runId = 003d3cb5-e621-4e50-815c-30901e5b5418]
Current Committed Offsets: {}
Current Available Offsets: {DeltaSource[file:/tmp/src]: {"sourceVersion":1,"index":-1}}

Current State: ACTIVE
Thread State: RUNNABLE

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 4b90d631-9e4c-4a3a-a676-ef32a6a2aea5, [queryName=gps], Append
"""
CAPTURED = "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] "


def failure(last_line):
    return query_failure("gps", TRACEBACK % last_line)


def test_failfast_becomes_a_decode_error_that_names_the_record():
    error = failure(
        f"{CAPTURED}FAILFAST: topic gps, partition 0, offset 17, schema id 7, reason undecodable "
        "(end of record) SQLSTATE: P0001"
    )
    assert type(error) is DecodeError
    assert error.cause == (
        "query gps met a record that does not decode: "
        "topic gps, partition 0, offset 17, schema id 7, reason undecodable"
    )
    assert error.fields == {
        "query": "gps",
        "topic": "gps",
        "partition": 0,
        "offset": 17,
        "schema_id": 7,
        "reason": "undecodable",
    }
    assert error.remedy.startswith("set mode=PERMISSIVE")


def test_the_plan_of_a_failfast_query_that_failed_otherwise_is_no_record():
    plan = "raise_error(concat(FAILFAST: topic , topic#1, , partition , partition#2,  (end of record)))"
    error = failure(f"java.lang.IllegalStateException: no such thing\n{plan}")
    assert type(error) is IngestError


def test_how_long_to_go_on_is_a_number_of_seconds():
    progress.keep_running(None, "0")
    with pytest.raises(ConfigError, match="'soon' is no number of seconds"):
        progress.keep_running(None, "soon")


def test_an_error_of_ours_keeps_its_class_cause_and_remedy():
    error = failure("topiclake.errors.SchemaRegistryError: the registry at x does not answer; try: check it")
    assert type(error) is SchemaRegistryError
    assert error.cause == "query gps stopped: the registry at x does not answer"
    assert error.remedy == "check it"
    assert error.fields == {"query": "gps"}


@pytest.mark.parametrize("remedy", ["", "check it"])
@pytest.mark.parametrize("suffix", ["", " SQLSTATE: 39000", " SQLSTATE: 39000 SQLSTATE: XXKST"])
def test_the_id_in_the_text_of_an_error_is_not_doubled(remedy, suffix):
    error = failure(f"topiclake.errors.StorageError: {StorageError('/x is full', remedy)}{suffix}")
    assert type(error) is StorageError
    assert (error.cause, error.remedy) == ("query gps stopped: /x is full", remedy)
    assert str(error).count("[TL-") == 1
    assert str(error).endswith(" [TL-STORAGE-001]")


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ("schema id none, reason too_short", {"schema_id": None, "reason": "too_short"}),
        ("schema id 7, reason key undecodable", {"schema_id": 7, "reason": "key undecodable"}),
        (f"schema {'0A' * 16}: {NOT_LISTED}", {"schema_id": "0A" * 16}),
        (f"schema of its key 5: {NOT_LISTED}", {"schema_id": 5}),
        ("reason bad_magic: no magic byte", {"reason": "bad_magic"}),
    ],
)
def test_the_fields_of_a_refused_record_are_its_place_schema_and_reason(schema, fields):
    error = failure(f"{CAPTURED}FAILFAST: topic 4.a-b, partition 1, offset 2, {schema} (end of record)")
    assert error.fields == {"query": "gps", "topic": "4.a-b", "partition": 1, "offset": 2, **fields}


def test_the_fields_of_a_record_are_found_in_an_error_of_ours_too():
    inner = DecodeError("FAILFAST: topic gps, partition 0, offset 3, reason bad_magic: x", "another mode")
    error = failure(f"topiclake.errors.DecodeError: {inner}")
    assert type(error) is DecodeError
    assert error.fields == {
        "query": "gps",
        "topic": "gps",
        "partition": 0,
        "offset": 3,
        "reason": "bad_magic",
    }


def test_an_error_of_ours_without_a_remedy_has_none():
    error = failure("topiclake.errors.StorageError: no remedy here")
    assert type(error) is StorageError
    assert (error.cause, error.remedy) == ("query gps stopped: no remedy here", "")


def test_an_error_class_that_we_do_not_know_is_an_ingest_error():
    assert type(failure("topiclake.errors.FutureError: x")) is IngestError


def test_any_other_error_is_named_by_its_last_cause():
    error = failure("ZeroDivisionError: division by zero")
    assert type(error) is IngestError
    assert error.cause == "query gps stopped: division by zero"
    assert error.remedy == "read python -m workbench logs spark, or the log of the driver"


def test_an_error_of_spark_is_named_by_its_message():
    error = failure(f"{CAPTURED}Boom SQLSTATE: P0001")
    assert error.cause == "query gps stopped: [USER_RAISED_EXCEPTION] Boom SQLSTATE: P0001"


@pytest.mark.parametrize(
    "text",
    [
        "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost because they are not available "
        "in Kafka any more; either the data was aged out by Kafka or the topic may have been deleted before "
        "all the data in the topic was processed.",
        "java.lang.IllegalStateException: Partition gps-0's offset was changed from 500 to 3. Some data may "
        "have been lost.",
    ],
)
def test_offsets_that_kafka_dropped_are_called_lost(text):
    error = query_failure("gps", f"[STREAM_FAILED] Query terminated with exception: {text} SQLSTATE: XXKST")
    assert type(error) is OffsetsLostError
    assert "Kafka no longer holds offsets that its checkpoint asks for" in error.cause
    assert error.remedy.startswith("set a new checkpoint_path")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            'org.apache.kafka.common.errors.SaslAuthenticationException: {"status":"invalid_token"}',
            "the broker refuses the login",
        ),
        (
            "Failed to create new KafkaAdminClient SQLSTATE: XXKST",
            "Kafka's client cannot log in",
        ),
        (
            "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed",
            "broker and client do not trust each other's certificates",
        ),
    ],
)
def test_a_login_that_fails_is_one_sentence(text, cause):
    error = query_failure("gps", f"[STREAM_FAILED] Query terminated with exception: {text}")
    assert type(error) is KafkaError
    assert error.cause == f"query gps stopped: {cause}"


def test_a_text_without_a_cause_is_shown_itself_on_one_line():
    assert query_failure(None, "first\n  second").cause == "query None stopped: first second"


def test_a_very_long_cause_is_cut():
    assert len(failure("ValueError: " + "x" * 5000).cause) < 600


def test_the_cause_of_a_java_stack_is_the_innermost():
    text = "org.apache.spark.SparkException: Aborted\nCaused by: java.io.IOException: disk full\n\tat a.b.c\n"
    assert query_failure("gps", text).cause == "query gps stopped: java.io.IOException: disk full"


def test_the_trace_that_spark_hangs_below_a_failing_tasks_error_is_no_cause():
    suppressed = "org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace of original"
    text = "org.apache.spark.SparkException: Job aborted\nCaused by: java.io.IOException: disk full\n"
    trace = f"\tSuppressed: {suppressed} doTryWithCallerStacktrace caller\n\t\tat org.apache.spark.util.Utils"
    assert query_failure("gps", text + trace).cause == "query gps stopped: java.io.IOException: disk full"


def test_a_record_of_a_schema_that_came_later_says_to_start_the_query_again():
    record = f"topic gps, partition 0, offset 2, schema 5: {NOT_LISTED}"
    error = query_failure(
        "gps", f"[USER_RAISED_EXCEPTION] FAILFAST: {record} (end of record) SQLSTATE: P0001"
    )
    assert isinstance(error, IngestError)
    assert type(error) is NewSchemaError
    assert error.cause == f"query gps stopped, with nothing lost: {record}"
    assert error.remedy.startswith("start it again; ")
    assert error.fields == {"query": "gps", "topic": "gps", "partition": 0, "offset": 2, "schema_id": 5}


@pytest.mark.parametrize(
    "said",
    [
        "Multiple streaming queries are concurrently using wasbs://c@a/checkpoints/gps/offsets/0",
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple jobs detected for 0.",
    ],
)
def test_a_second_query_on_a_checkpoint_is_told_of_the_first(said):
    error = query_failure("gps", f"[STREAM_FAILED] Query [id = 4b90] terminated with exception: {said}")
    assert type(error) is IngestError
    assert error.fields == {"query": "gps"}
    assert error.cause.startswith("query gps stopped: another query uses its checkpoint; nothing was lost")
    assert "checkpoint_path" in error.remedy
