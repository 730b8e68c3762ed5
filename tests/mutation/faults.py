"""The guards of exactly-once, how to break each, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MICRO_BATCH = "tests/spark/ingest/test_micro_batch.py"
_REPLAY = "tests/spark/ingest/test_replay.py"
_AUDIT = "tests/spark/ingest/test_audit.py"
_TRANSFORM = "tests/integration/ingest/test_transform.py"
_TOPICS = "tests/integration/ingest/test_topics.py"
_VALUES = "tests/integration/sources/test_registered_values.py"
_RESUME = "tests/integration/ingest/test_resume.py"
_OUTAGE = "tests/integration/schema_registry/test_registry_outage.py"
_REGISTRY = "tests/integration/schema_registry/test_registry_faults.py"
_THREADS = "tests/unit/schema_registry/test_threads.py"
_LATE = "tests/integration/sinks/test_late.py"
_CHANGES = "tests/spark/changes/test_rows.py"
_CHANGE_BATCH = "tests/spark/ingest/test_change_batch.py"
_TOPIC_CHANGES = "tests/integration/ingest/test_changes.py"
_CHANGE_AUDIT = "tests/spark/ingest/test_change_audit.py"
_BOMBS = "tests/spark/formats/test_bombs.py"
_NEWEST_CHANGE = "the_newest_change_of_each_key_is_its_row_however_changes_arrive"
_WAITS = "a_running_query_waits_for_its_registry_and_goes_on_by_itself"
_ABORTED = "records_of_aborted_transactions_are_left_out_and_rows_of_them_named"
_ALL_COUNTED = "counted_and_late_rows_are_together_what_a_batch_counts"


@dataclass(frozen=True)
class Fault:
    """One guard and its end.

    Attributes:
        guard: What the guard does, in words.
        module: The module of `topiclake` that it stands in.
        right: Its text, which is there exactly once.
        wrong: What stands there instead.
        file: The file of the test that must go red.
        test: The test's name without `test_`.
        only: Its parameters' names, where some of them will do.
    """

    guard: str
    module: str
    right: str
    wrong: str
    file: str
    test: str
    only: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The module's file, below the project."""
        return Path("src", "topiclake", f"{self.module}.py")

    def broken(self, text: str) -> str:
        """Return the module's `text` without the guard.

        Raises:
            ValueError: The guard does not stand there exactly once.
        """
        if text.count(self.right) != 1:
            raise ValueError(f"{self.guard}: its text is not once in {self.source}; mend this file")
        return text.replace(self.right, self.wrong)

    @property
    def selection(self) -> list[str]:
        """How pytest finds the test."""
        test = f"{self.file}::test_{self.test}"
        return [f"{test}[{one}]" for one in self.only] or [test]


FAULTS = (
    Fault(
        "a record ends where its bytes end",
        "formats/codec",
        "return result[END_FIELD].eqNullSafe(END)",
        "return result[END_FIELD].isNotNull()",
        "tests/spark/formats/test_decode.py",
        "bytes_behind_the_record_are_undecodable",
    ),
    Fault(
        "each schema is decoded once in the plan",
        "formats/avro/decoding",
        "return once(first_of(branches) if branches else _undecoded(codec, part))",
        "return first_of(branches) if branches else _undecoded(codec, part)",
        "tests/spark/formats/test_decode.py",
        "each_schema_is_decoded_once_in_the_plan",
    ),
    Fault(
        "Delta's transaction id",
        "delta/table",
        '"txnAppId": writer,',
        '"txnAppId": writer + __import__("uuid").uuid4().hex,',
        _MICRO_BATCH,
        "a_batch_is_written_once_for_each_checkpoint_and_topic",
    ),
    Fault(
        "a new checkpoint writes under a new id",
        "ingest/targets",
        "query = checkpoint.query_id(spark, target.checkpoint, target.start)\n    return",
        "query = target.pipeline\n    return",
        _MICRO_BATCH,
        "a_batch_is_written_once_for_each_checkpoint_and_topic",
    ),
    Fault(
        "each topic of a query writes under a separate id",
        "ingest/targets",
        'return query if target.topic is None else f"{query}/{target.topic}"',
        "return query",
        _MICRO_BATCH,
        "a_batch_is_written_once_for_each_checkpoint_and_topic",
    ),
    Fault(
        "a repeated batch keeps the schemas of commit 1",
        "ingest/registered_records",
        'self.state.schemas.pinned(self.spark, commit["schemas"], commit["constraints"])',
        "self.state.schemas.current(self.spark)",
        _MICRO_BATCH,
        "a_schema_that_becomes_known_after_a_crash_doubles_nothing",
    ),
    Fault(
        "a repeated batch decodes plain values with the same schemas",
        "ingest/registered_records",
        'return self.rejected(records, pinned, commit["plain"])',
        "return self.rejected(records, pinned, self.state.schemas.plain(pinned))",
        _MICRO_BATCH,
        "a_version_of_plain_values_that_is_taken_off_the_list_puts_no_record_into_both_places",
    ),
    Fault(
        "a repeated batch uses the configuration of its first attempt",
        "ingest/registered_records",
        'if commit is None or commit["judged"] == now:',
        "if True:",
        _MICRO_BATCH,
        "a_batch_is_finished_as_it_was_begun_whatever_the_pipeline_is_called_and_set_to_by_then",
    ),
    Fault(
        "a batch of other offsets is not skipped as a batch that the table has",
        "streaming/batch_offsets",
        "if committed and now and committed != now:",
        "if False:",
        _MICRO_BATCH,
        "a_batch_of_other_offsets_is_not_taken_for_the_one_that_the_table_has",
    ),
    Fault(
        "a row is checked against the constraints of the table",
        "ingest/batch_schemas",
        "snapshot.columns, snapshot.constraints)",
        "snapshot.columns)",
        _MICRO_BATCH,
        "records_that_a_constraint_refuses_are_in_quarantine",
    ),
    Fault(
        "a repeated batch uses the constraints of its first attempt",
        "ingest/batch_schemas",
        "return replace(codecs, table=self.table_columns, constraints=constraints)",
        "return codecs",
        _MICRO_BATCH,
        "a_constraint_that_is_dropped_after_a_crash_doubles_nothing",
    ),
    Fault(
        "a transform that changes the number of rows writes nothing",
        "ingest/row_transform",
        "if before != after:",
        "if False:",
        _TRANSFORM,
        "a_transform_that_changes_the_number_of_rows_writes_nothing",
        only=("filter",),
    ),
    Fault(
        "a table keeps its reader schema",
        "ingest/batch_schemas",
        "snapshot.properties.get(name))\n        except",
        "None)\n        except",
        _MICRO_BATCH,
        "members_of_a_union_keep_their_places_whichever_version_comes_first_after_a_restart",
    ),
    Fault(
        "the name of a reference is no option of the Protobuf compiler",
        "formats/protobuf/schema",
        "if not _FILE_NAME.fullmatch(name):",
        "if False:",
        "tests/unit/formats/test_protobuf_schema.py",
        "the_name_of_a_reference_is_no_option_and_no_path_elsewhere",
    ),
    Fault(
        "Protobuf messages that are read at once have no bytes of other fields",
        "formats/protobuf/usual_messages",
        "np.where(at == ends, at, -1)",
        "at",
        "tests/unit/formats/test_protobuf_usual_messages.py",
        "what_google_reads_in_another_way_is_unusual",
    ),
    Fault(
        "if a schema was deleted, the table shows which records it has",
        "ingest/registered_records",
        'return records.join(written, location, "left_anti")',
        "return records",
        _MICRO_BATCH,
        "a_version_that_is_gone_after_a_crash_is_told_by_the_table",
    ),
    Fault(
        "a repeated batch also reuses the schemas of commit 2",
        "ingest/registered_batch",
        "late = batch.earlier(batch.target.table, LATE)",
        "late = None",
        _MICRO_BATCH,
        "failfast_accepts_a_record_of_commit_2_whose_schema_is_gone_after_a_crash",
    ),
    Fault(
        "if two drivers write a batch, the driver of commit 2 decides",
        "ingest/rejected_records",
        "(is_open or (",
        "(False or (",
        _MICRO_BATCH,
        "a_second_driver_that_knows_another_schema_puts_no_record_into_both_places",
    ),
    Fault(
        "a repeated batch does nothing after commit 3",
        "ingest/registered_batch",
        "if batch.earlier(target.quarantine) is not None:",
        "if False:",
        _MICRO_BATCH,
        "what_is_in_quarantine_stays_there_when_its_version_fits_by_then",
    ),
    Fault(
        "a batch is written again if another writer committed first",
        "delta/table",
        "_ATTEMPTS = 5",
        "_ATTEMPTS = 1",
        _MICRO_BATCH,
        "two_versions_at_once_are_both_written",
    ),
    Fault(
        "FAILFAST fails before anything is written",
        "ingest/registered_batch",
        "decoded = registered_rows.fail_on_bad_record(decoded, codecs, layout)",
        "pass",
        "tests/notebooks/test_gps.py",
        "failfast_names_topic_partition_and_offset_and_writes_nothing",
    ),
    Fault(
        "after five unknown ids a minute, further ids are not requested",
        "schema_registry/registry",
        "not self._is_known(canonical(key)) and len(self._recent_misses()) >= _MISSES",
        "False",
        _MICRO_BATCH,
        "many_unknown_ids_cost_five_requests",
    ),
    Fault(
        "a client sends at most five requests a minute for a path",
        "schema_registry/retries",
        "if len(spent.times) < REQUESTS_PER_MINUTE:",
        "if len(spent.times) < 100:",
        _REGISTRY,
        "a_cold_client_waits_for_the_answer_and_asks_at_most_five_times_a_minute",
    ),
    Fault(
        "the client waits as long as Retry-After asks",
        "schema_registry/retries",
        "max(_BACKOFF(state), _fault(state).wait)",
        "_BACKOFF(state)",
        _REGISTRY,
        "retry_after_is_honoured_up_to_a_minute",
    ),
    Fault(
        "an unavailable, hanging or interrupted registry classifies no record",
        "schema_registry/client",
        "timed_out = isinstance(error, httpx.TimeoutException)",
        "raise NotFoundError from None",
        _OUTAGE,
        _WAITS,
    ),
    Fault(
        "an error of the registry classifies no record",
        "schema_registry/client",
        "            return FaultError(cause, _LOOK_AT_LOG, wait)",
        "            return NotFoundError()",
        _OUTAGE,
        _WAITS,
    ),
    Fault(
        "a refused login classifies no record",
        "schema_registry/client",
        "            self._is_refused = True\n",
        "            return NotFoundError()\n",
        _OUTAGE,
        _WAITS,
    ),
    Fault(
        "an id is unknown only by the registry's error code",
        "schema_registry/client",
        "if response.status == 404 and (code in missing or self._lacks(response.path)):",
        "if response.status == 404:",
        _OUTAGE,
        _WAITS,
    ),
    Fault(
        "a running query waits for its registry",
        "ingest/start",
        "target.schemas.waiting(settings.schema_registry)",
        "target.schemas",
        _OUTAGE,
        _WAITS,
    ),
    Fault(
        "the limits of Avro are set",
        "session",
        'f"-XX:+UseG1GC {jvm_options()}"',
        '"-XX:+UseG1GC"',
        _BOMBS,
        "bombs_are_quarantined_and_their_neighbours_decoded",
        only=("each limit",),
    ),
    Fault(
        "executors have the limits of Avro",
        "session",
        '"spark.executor.extraJavaOptions": options',
        '"spark.executor.extraJavaOptions": "-XX:+UseG1GC"',
        "tests/integration/workbench/test_cluster.py",
        "notebooks_share_the_cluster_and_their_executors_have_limits_and_this_python",
    ),
    Fault(
        "items without bytes are limited",
        "session",
        "FREE_ITEMS_LIMIT = 64 * 1024",
        "FREE_ITEMS_LIMIT = AVRO_LIMIT",
        _BOMBS,
        "bombs_are_quarantined_and_their_neighbours_decoded",
        only=("each limit",),
    ),
    Fault(
        "the size of a fixed is limited",
        "formats/avro/spark_type",
        "FIXED_LIMIT = 16 * 1024 * 1024",
        "FIXED_LIMIT = 2**31",
        _BOMBS,
        "bombs_are_quarantined_and_their_neighbours_decoded",
        only=("each limit",),
    ),
    Fault(
        "a JVM without the limits is refused at the start",
        "session",
        "    if missing := _missing_limits(java_properties):",
        "    if False:",
        "tests/spark/test_platform_check.py",
        "a_jvm_without_the_limits_is_refused_with_what_to_set",
    ),
    Fault(
        "a replay claims only records without a claim",
        "ingest/quarantine/replay_claims",
        '_IS_SAME = " AND ".join(f"old.{name} = new.{name}" for name in KEY)',
        '_IS_SAME = "false"',
        _REPLAY,
        "replays_beside_and_after_one_that_crashed_land_each_record_once",
    ),
    Fault(
        "a claim is appended once",
        "ingest/quarantine/replay",
        'writer = f"replay/{claim}"',
        'writer = f"replay/{uuid4().hex}"',
        _REPLAY,
        "replays_beside_and_after_one_that_crashed_land_each_record_once",
    ),
    Fault(
        "a replayed row is marked",
        "ingest/quarantine/replay",
        "return replay_claims.mark(self.spark, self.target.quarantine, claim)",
        "return claimed.count()",
        _REPLAY,
        "replays_beside_and_after_one_that_crashed_land_each_record_once",
    ),
    Fault(
        "a claimed change whose row is gone waits again",
        "ingest/quarantine/replay",
        "            if changes.rejections:",
        "            if False:",
        "tests/spark/ingest/test_change_batch.py",
        "a_replay_applies_changes_whose_rows_are_known_undoes_none_and_lets_the_others_wait",
    ),
    Fault(
        "an unavailable registry pauses no topic",
        "ingest/isolated_topic",
        "isinstance(error, (SchemaRegistryError, DecodeError))",
        "False",
        _TOPICS,
        "a_registry_that_is_away_pauses_no_topic",
    ),
    Fault(
        "a missing checkpoint does not restart the topic",
        "ingest/start_check",
        'if pipeline.resume != "table":',
        "if False:",
        _RESUME,
        "a_checkpoint_that_is_gone_is_refused_and_the_table_says_where_to_continue",
    ),
    Fault(
        "a table that lacks batches of its checkpoint is refused",
        "ingest/start_check",
        "if batch_id < progress.committed:",
        "if False:",
        _RESUME,
        "a_table_that_is_gone_or_put_back_is_refused",
    ),
    Fault(
        "the last batch of a lost checkpoint is verified record by record",
        "ingest/resume_table",
        "if commit.version != newest[commit.writer]]",
        "]",
        _RESUME,
        "a_checkpoint_that_is_gone_is_refused_and_the_table_says_where_to_continue",
    ),
    Fault(
        "a schema is decided once for rows and quarantine",
        "sources/fixed_schemas",
        "for key, version in (listed | schemas).items() if key not in unknown}",
        "for key, version in (listed | schemas).items()}",
        _VALUES,
        "a_schema_that_no_subject_lists_is_decided_once_for_rows_and_quarantine",
    ),
    Fault(
        "a topic of several that lost records is paused",
        "ingest/multi_topic",
        'elif topic in lost and (topics.fail_on_data_loss or lost[topic].why == "deleted"):',
        "elif False:",
        _TOPICS,
        "a_topic_that_lost_records_is_paused_alone",
    ),
    Fault(
        "a batch of several topics reads Kafka once",
        "ingest/multi_topic",
        "    with cached(records), _side_by_side(",
        "    with _side_by_side(",
        _TOPICS,
        "a_batch_reads_kafka_once_and_an_idle_topic_costs_nothing",
    ),
    Fault(
        "five requests to the registry at once",
        "schema_registry/client",
        "_REQUESTS_AT_ONCE = 5",
        "_REQUESTS_AT_ONCE = 50",
        _THREADS,
        "subjects_are_asked_for_side_by_side_five_at_once",
    ),
    Fault(
        "threads share the response for a path",
        "schema_registry/client",
        "return self.shared(path, ask)",
        "return ask()",
        _THREADS,
        "threads_that_ask_for_one_subject_share_the_answer",
    ),
    Fault(
        "a resumed topic gets the records that it missed",
        "ingest/isolated_topic",
        "_write_batch(target, records, number, resumed_offsets=offsets)",
        "records.schema",
        _TOPICS,
        "a_crash_between_a_resumed_range_and_its_mark_doubles_nothing",
    ),
    Fault(
        "the range of a resumed topic is stored before it is written",
        "ingest/paused_topics",
        'number = missed[0]["resumed_as"]\n    if number is not None',
        "number = None\n    if number is not None",
        _TOPICS,
        "a_crash_between_a_resumed_range_and_its_mark_doubles_nothing",
    ),
    Fault(
        "a batch combines no ranges that it notes itself",
        "ingest/paused_topics",
        " AND batch_id < {before}",
        "",
        "tests/spark/ingest/test_paused_topics.py",
        "a_long_pause_has_few_rows_with_the_same_offsets",
    ),
    Fault(
        "a log that a second driver could overwrite is refused",
        "delta/log_store",
        "if is_databricks() or scheme not in _LOG_STORES:",
        "if True:",
        "tests/spark/test_platform_check.py",
        "a_session_whose_log_a_second_driver_could_overwrite_is_refused",
    ),
    Fault(
        "a session that would show secrets is refused",
        "session",
        "weak = [key for key in REDACTION_CONF if not _hides(",
        "weak = [key for key in () if not _hides(",
        "tests/repository/test_databricks.py",
        "a_session_that_would_show_a_secret_is_refused_with_what_to_set",
    ),
    Fault(
        "a window that ends exactly at the watermark is closed",
        "streaming/windows",
        "paired.where(end <= watermark)",
        "paired.where(end < watermark)",
        _LATE,
        _ALL_COUNTED,
        only=("append",),
    ),
    Fault(
        "rows are late by the watermark of the previous batch",
        "sinks/late_rows",
        "past = before if",
        "past = now if",
        _LATE,
        _ALL_COUNTED,
        only=("append",),
    ),
    Fault(
        "late rows are written under a fixed `txnAppId`",
        "sinks/late_rows",
        "{batch.query_id}/late",
        "{__import__('uuid').uuid4().hex}/late",
        _LATE,
        _ALL_COUNTED,
        only=("append",),
    ),
    Fault(
        "the audit counts missing records",
        "ingest/audit/counts",
        'f"bit_count({expected} & {nowhere})"',
        '"0"',
        _AUDIT,
        "each_fault_is_counted_and_named",
    ),
    Fault(
        "the audit counts doubled records",
        "ingest/audit/counts",
        '"copies - bit_count(rows) - bit_count(waiting | claimed)"',
        '"0"',
        _AUDIT,
        "each_fault_is_counted_and_named",
    ),
    Fault(
        "the audit counts records that are in both tables",
        "ingest/audit/counts",
        '"bit_count(rows & waiting)"',
        '"0"',
        _AUDIT,
        "each_fault_is_counted_and_named",
    ),
    Fault(
        "the audit counts rows without a record in Kafka",
        "ingest/audit/counts",
        'f"bit_count({unknown}) + untraced"',
        '"0"',
        _AUDIT,
        "each_fault_is_counted_and_named",
    ),
    Fault(
        "the audit counts rows of aborted transactions",
        "ingest/audit/counts",
        'f"bit_count({dropped} & uncommitted)"',
        '"0"',
        _AUDIT,
        _ABORTED,
        only=("committed",),
    ),
    Fault(
        "records of aborted transactions are not read",
        "config/kafka",
        '.get("isolation.level", "read_committed")',
        '.get("isolation.level", "read_uncommitted")',
        _AUDIT,
        _ABORTED,
        only=("committed",),
    ),
    Fault(
        "an older change does not replace a newer row",
        "changes/clauses",
        "WHEN MATCHED AND {is_newer} THEN",
        "WHEN MATCHED THEN",
        _CHANGES,
        _NEWEST_CHANGE,
    ),
    Fault(
        "the table keeps deletions",
        "changes/batch",
        ".isin(UPSERT, DELETE)",
        ".isin(UPSERT)",
        _CHANGES,
        _NEWEST_CHANGE,
    ),
    Fault(
        "the newest change of a batch is the row of its key",
        "changes/newest",
        "F.max_by(F.struct(*others), order.key())",
        "F.min_by(F.struct(*others), order.key())",
        _CHANGES,
        _NEWEST_CHANGE,
    ),
    Fault(
        "a MERGE that is repeated is skipped",
        "delta/merge",
        'f"{_COMMAND}txnVersion": str(batch_id)',
        'f"{_COMMAND}txnVersion": str(__import__("time").time_ns())',
        _CHANGES,
        _NEWEST_CHANGE,
    ),
    Fault(
        "a change that is older than a truncate does not count",
        "changes/batch",
        "changes.where(last.precedes())",
        "changes",
        _CHANGES,
        "a_truncate_deletes_all_older_rows_and_later_ones_that_are_older",
    ),
    Fault(
        "a quarantined change of a repeated batch is not merged",
        "ingest/change_batch",
        'records = records.join(F.broadcast(quarantined), list(_POSITION), "left_anti")',
        "records = batch.records",
        _CHANGE_BATCH,
        "a_record_that_is_in_quarantine_stays_there_after_a_crash",
    ),
    Fault(
        "the compaction after a MERGE is no batch",
        "delta/catalog",
        'F.when(F.col("operation") != "OPTIMIZE", F.col("userMetadata"))',
        'F.col("userMetadata")',
        _CHANGE_BATCH,
        "the_history_has_a_batch_once_if_delta_compacts_files_after_its_merge",
    ),
    Fault(
        "a purge removes marked rows from the files",
        "changes/tables",
        "if has_vectors:",
        "if False:",
        _CHANGE_BATCH,
        "old_values_stay_in_files_until_a_purge_outside_a_batch",
    ),
    Fault(
        "the audit finds a lost change",
        "ingest/audit/changes",
        "superseded = (change < old) | is_purged",
        "superseded = F.lit(True)",
        _CHANGE_AUDIT,
        "the_audit_accounts_for_each_record_of_debezium_and_finds_each_fault",
    ),
    Fault(
        "no value survives a deletion that is newer",
        "changes/clauses",
        "WHEN new.{CLEARED} > {old} THEN NULL",
        "WHEN new.{CLEARED} < {old} THEN NULL",
        "tests/spark/changes/test_partial.py",
        "no_value_that_is_older_than_a_deletion_survives",
    ),
    Fault(
        "a late change ends the version before it",
        "changes/history",
        "F.col(NEW) | ~F.col(_STORED)",
        "F.col(NEW) & ~F.col(_STORED)",
        "tests/spark/changes/test_history.py",
        "late_changes_rewrite_the_history_of_a_row",
    ),
    Fault(
        "two writers of versions make the history of one",
        "changes/batch",
        "if rows and self.rules.has_versions:",
        "if False:",
        "tests/spark/changes/test_history.py",
        "two_writers_make_the_history_of_one",
    ),
    Fault(
        "the audit finds a lost version",
        "ingest/audit/changes",
        "prepared.where(F.col(OPERATION_FIELD) == SKIP)",
        "prepared",
        _CHANGE_AUDIT,
        "the_audit_finds_each_change_in_a_table_of_all_versions",
    ),
    Fault(
        "records without Debezium's envelope are refused",
        "formats/envelope",
        "_OP not in kinds or not isinstance(kinds.get(_AFTER), StructType)",
        "False",
        "tests/spark/changes/test_debezium.py",
        "records_without_the_envelope_are_refused",
    ),
    Fault(
        "offsets that begin again do not order changes",
        "streaming/lost_offsets",
        "settings.pipeline.orders_changes_by_offset and any(",
        "False and any(",
        _TOPIC_CHANGES,
        "changes_that_offsets_order_continue_with_no_other_topic",
    ),
    Fault(
        "changes that offsets order are restarted with their topic only",
        "ingest/start_check",
        "if not pipeline.orders_changes_by_offset:",
        "if pipeline.changes is not None:",
        _TOPIC_CHANGES,
        "changes_that_offsets_order_continue_with_no_other_topic",
    ),
    Fault(
        "changes that offsets order come from one topic, by its id",
        "ingest/table_topics",
        'noted.get("id", self.ids[topic]) != self.ids[topic]',
        "False",
        _TOPIC_CHANGES,
        "changes_that_offsets_order_continue_with_no_other_topic",
    ),
)
