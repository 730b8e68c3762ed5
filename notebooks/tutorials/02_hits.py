# Databricks notebook source
# MAGIC %md
# MAGIC # Tutorial 2: hits into memory, console, files, a database and Kafka
# MAGIC
# MAGIC This tutorial follows the article "Real-Time End-to-End Integration with Apache Kafka in Apache Spark's Structured
# MAGIC Streaming" (Databricks, April 2017). Each step has the article's code in plain Spark. An assertion shows the wrong
# MAGIC result of that code. Then a call of Topiclake replaces it.
# MAGIC
# MAGIC **Run it** from top to bottom, as often as you like: `python -m workbench run notebooks/tutorials/02_hits.py`. Each
# MAGIC run has a new topic and new folders, and publishes the hits itself. The plain cells need a broker without a login.
# MAGIC The cells with Topiclake use the logins of `conf/`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | the name of each run's topic begins with it | |
# MAGIC | `storage` | `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the folders of all runs are below it | |
# MAGIC | `hits` | the number of hits of the first publishing | |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

shared = tl.notebook_settings(dbutils, "storage", pipeline="isp", topic="tutorial-hits",
                              table_path="/mnt/datalake/tutorials/hits", hits="2000")
tl.mount(dbutils, shared.storage, spark)

# COMMAND ----------

# DBTITLE 1,Topic and folder of this run
from topiclake_examples.tutorials import TutorialRun

topic, folder = f"{shared.pipeline.topic}-{shared.run_id[:8]}", f"{shared.pipeline.location}/{shared.run_id[:8]}"
run = TutorialRun(shared, topic, folder, dbutils.secrets.get)
settings, small = run.settings("table"), run.settings("table", max_offsets_per_trigger="1000")
tl.set_state(spark, settings)
trigger, brokers, plain = settings.pipeline.trigger, settings.kafka.bootstrap_servers, run.located("plain")
print(topic, folder, sep="\n")

# COMMAND ----------

# DBTITLE 1,Hits to read
from uuid import uuid4
from topiclake_examples import isp

published = isp.publish_hits(spark, settings, hits=dbutils.widgets.get("hits"), damaged=3)
wrong_clock = {
    "key": "94103",
    "value": '{"ip": "192.0.2.9", "isp": "Bay Cable", "zipcode": "94103", "hittime": "2036-01-02T03:10:00Z"}',
}
tl.write_topic(spark.createDataFrame([wrong_clock]), settings, write_id=uuid4().hex, topic=topic)
sent = published.records + 1
print(f"{sent} records: 3 are cut off, and the clock of 1 is ten years fast")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Connect to a topic
# MAGIC The article's source has seven columns. Key and value are bytes.
# MAGIC
# MAGIC | column | content |
# MAGIC |---|---|
# MAGIC | `key` | here the zip code; it decides the partition |
# MAGIC | `value` | the hit |
# MAGIC | `topic`, `partition`, `offset` | the position of the record |
# MAGIC | `timestamp`, `timestampType` | when the producer sent the record (0), or the broker stored it (1) |

# COMMAND ----------

# DBTITLE 1,Plain Spark: the stream
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
records.printSchema()

# COMMAND ----------

# MAGIC %md
# MAGIC ## A sample record
# MAGIC A value is JSON. The article gets fields out of it with `get_json_object`.

# COMMAND ----------

# DBTITLE 1,A sample record
sample = tl.read_batch(spark, settings).where("length(value) > 20").orderBy("partition", "offset").limit(1)
display(sample.selectExpr("CAST(key AS STRING) AS key", "topic", "partition", "offset", "timestamp"))
print(sample.selectExpr("CAST(value AS STRING)").first()[0])

# COMMAND ----------

# MAGIC %md
# MAGIC ## Streaming ETL: counts by zip code
# MAGIC `display` of a stream starts it. The table below the cell changes with each micro-batch.

# COMMAND ----------

# DBTITLE 1,Plain Spark: counts by zip code
from pyspark.sql import functions as F

value = F.col("value").cast("string")
hits_text = records.select(
    F.get_json_object(value, "$.zipcode").alias("zip"),
    F.get_json_object(value, "$.isp").alias("isp"),
    F.get_json_object(value, "$.hittime").alias("hittime"),
)
display(hits_text.groupBy("zip").count(), streamName="plain_by_zip", trigger={"availableNow": True})

# COMMAND ----------

# DBTITLE 1,Wrong: damaged records as hits
plain_counts = hits_text.groupBy("zip").count().writeStream.format("memory").queryName("plain_zips")
plain_counts.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
without_zip = spark.table("plain_zips").where("zip IS NULL").first()
nine_digits = spark.table("plain_zips").where("zip LIKE '%-%'").count()
print(f"{without_zip['count']} damaged records are counted as hits, and {nine_digits} zip codes have nine digits")
assert without_zip["count"] == 3
assert nine_digits == 2

# COMMAND ----------

# MAGIC %md
# MAGIC `get_json_object` returns null for a damaged record. So three records that are no hits are counted as one zip code, and
# MAGIC nobody sees them. `94016-1021` is counted apart from `94016`.
# MAGIC
# MAGIC `tl.read_values` decodes each value by the columns of `conf/pipelines/isp.yaml`. A damaged record goes to the
# MAGIC quarantine, with its offset and a reason.

# COMMAND ----------

# DBTITLE 1,Topiclake: hits, and rejected records
hits = tl.read_values(spark, settings)
tl.await_caught_up(tl.start_quarantine(spark, settings), trigger)
rejected = tl.quarantine_reasons(spark, settings)
display(rejected)

# COMMAND ----------

# MAGIC %md
# MAGIC A live chart is drawn again with each micro-batch. Here a micro-batch has at most 1,000 records.

# COMMAND ----------

# DBTITLE 1,Topiclake: live counts by zip code
in_small_batches = tl.read_values(spark, small)
tl.await_caught_up(isp.start_live_chart(isp.hits_per_zip(in_small_batches), "zip"), trigger)

# COMMAND ----------

# DBTITLE 1,Topiclake: live counts by ISP
tl.await_caught_up(isp.start_live_chart(in_small_batches.groupBy("isp").count(), "isp"), trigger)

# COMMAND ----------

# DBTITLE 1,Topiclake: counts by zip code
tl.await_caught_up(tl.start_memory(isp.hits_per_zip(hits), "hits_per_zip"), trigger)
per_zip = spark.table("hits_per_zip")
assert per_zip.agg(F.sum("count")).first()[0] == sent - 3
assert per_zip.where("NOT zip RLIKE '^[0-9]{5}$'").count() == 0
assert rejected.agg(F.sum("waiting")).first()[0] == 3
display(per_zip.orderBy(F.desc("count")).plot.bar(x="zip", y="count"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Windows
# MAGIC The article counts in windows of 10 minutes. One begins every 5 minutes, from 2 minutes past the hour.

# COMMAND ----------

# DBTITLE 1,Plain Spark: counts by window
timed = hits_text.withColumn("hittime", F.col("hittime").cast("timestamp"))
in_windows = timed.groupBy("zip", F.window("hittime", "10 minutes", "5 minutes", "2 minutes")).count()
plain_windows = in_windows.writeStream.format("memory").queryName("plain_windows").outputMode("complete")
plain_query = plain_windows.trigger(availableNow=True).start()
plain_query.awaitTermination()
display(spark.sql("SELECT window.start, window.end, zip, count FROM plain_windows ORDER BY start DESC, zip"))

# COMMAND ----------

# DBTITLE 1,Wrong: windows ten years ahead
plain_state = plain_query.lastProgress.stateOperators[0].numRowsTotal
in_future = spark.sql("SELECT * FROM plain_windows WHERE window.start > '2030-01-01'").count()
print(f"{in_future} windows are ten years ahead; the state has all {plain_state} rows")
assert in_future == 2
assert plain_state == spark.table("plain_windows").count()

# COMMAND ----------

# MAGIC %md
# MAGIC Without a watermark the state has each window for ever. With one, a single fast clock would close the windows of all
# MAGIC others. `isp.hits_per_window` has a watermark, and leaves out hits that are more than an hour ahead of their arrival.

# COMMAND ----------

# DBTITLE 1,Topiclake: counts by window
query = tl.start_memory(isp.hits_per_window(hits), "hits_per_window", output_mode="append")
tl.await_caught_up(query, trigger)
# Its first operator is the limit of the table in memory.
state = query.lastProgress.stateOperators[-1].numRowsTotal
per_window = spark.table("hits_per_window")
assert state < plain_state
assert per_window.where("start > '2030-01-01'").count() == 0
print(f"{per_window.count()} counts of closed windows, {state} rows in the state")

# COMMAND ----------

# DBTITLE 1,A pie for each window
display(isp.window_pies(per_window))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Memory
# MAGIC The memory sink makes a table that SQL can query while the stream runs.

# COMMAND ----------

# DBTITLE 1,Plain Spark: a table in memory
recent = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
isphits = recent.load().groupBy("key").count().writeStream.format("memory").queryName("isphits")
isphits.outputMode("complete").trigger(availableNow=True).start().awaitTermination()

# COMMAND ----------

# DBTITLE 1,Wrong: an empty table
# MAGIC %sql
# MAGIC SELECT count(*) AS zip_codes FROM isphits

# COMMAND ----------

# MAGIC %md
# MAGIC A stream begins at `latest` by default. So the hits that are in the topic already are not counted. The pipeline
# MAGIC `isp` says `starting_offsets: earliest`.

# COMMAND ----------

# DBTITLE 1,Topiclake: a live table in memory
assert spark.table("isphits").count() == 0
running = tl.start_memory(isp.hits_per_zip(tl.read_values(spark, settings)), "live_hits", trigger="1 second")
tl.await_caught_up(running, "1 second")

# COMMAND ----------

# DBTITLE 1,A query while the stream runs
# MAGIC %sql
# MAGIC SELECT zip, count FROM live_hits ORDER BY count DESC, zip LIMIT 5

# COMMAND ----------

# DBTITLE 1,More hits
before = spark.table("live_hits").agg(F.sum("count")).first()[0]
isp.publish_hits(spark, settings, hits=500, seed=2, start="2026-01-03T03:00:00Z", minutes=30)
sent += 500
tl.await_caught_up(running, "1 second")
assert running.isActive
assert spark.table("live_hits").agg(F.sum("count")).first()[0] == before + 500

# COMMAND ----------

# DBTITLE 1,The same query again
# MAGIC %sql
# MAGIC SELECT zip, count FROM live_hits ORDER BY count DESC, zip LIMIT 5

# COMMAND ----------

# DBTITLE 1,The stream's end
running.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Console
# MAGIC Spark's console sink prints in the JVM. Python does not get the text, so on Databricks it is in the driver's log alone.

# COMMAND ----------

# DBTITLE 1,Plain Spark: the console
import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()) as printed:
    console = hits_text.groupBy("zip").count().writeStream.format("console").outputMode("complete")
    console.trigger(availableNow=True).start().awaitTermination()

# COMMAND ----------

# DBTITLE 1,Wrong: nothing in the cell
assert printed.getvalue() == ""

# COMMAND ----------

# DBTITLE 1,Topiclake: the console
with contextlib.redirect_stdout(io.StringIO()) as printed:
    query = tl.start_console(isp.hits_per_zip(hits), "zips", output_mode="complete", most_rows=3)
    tl.await_caught_up(query, trigger)
print(printed.getvalue())
# On Spark Connect, the text is in the server's log.
is_connect = "connect" in type(spark).__module__
assert ("zips, batch 0: 9 rows" in printed.getvalue()) != is_connect

# COMMAND ----------

# MAGIC %md
# MAGIC ## Files: Parquet by zip code and day
# MAGIC The article writes Parquet files into a folder for each zip code and day.

# COMMAND ----------

# DBTITLE 1,Plain Spark: Parquet files
five_digits = hits_text.selectExpr("left(zip, 5) AS zip", "left(hittime, 10) AS day", "hittime")
parquet = five_digits.writeStream.format("parquet").partitionBy("zip", "day").option("path", f"{plain}/files")
parquet = parquet.option("checkpointLocation", f"{plain}/files_checkpoint").trigger(availableNow=True)
parquet.start().awaitTermination()
plain_files = spark.read.parquet(f"{plain}/files")
plain_files.printSchema()

# COMMAND ----------

# DBTITLE 1,Wrong: zip codes as numbers
wrong_zips = plain_files.select("zip").distinct().where("zip < 10000").orderBy("zip")
display(wrong_zips)
assert dict(plain_files.dtypes)["zip"] == "int"
assert wrong_zips.toPandas()["zip"].tolist() == [501, 2108]

# COMMAND ----------

# MAGIC %md
# MAGIC Spark guesses the types of folders: `00501` and `02108` become the numbers 501 and 2108. `tl.start_files` writes the
# MAGIC files, each hit once. `tl.show_progress` draws input rate, processing rate and batch duration meanwhile.

# COMMAND ----------

# DBTITLE 1,Topiclake: Parquet files with progress
files_path, dated = f"{folder}/files", isp.dated_hits(in_small_batches)
to_files = tl.start_files(
    dated,
    settings,
    path=files_path,
    checkpoint_path=f"{folder}/files_checkpoint",
    partition_by=["zip", "day"],
)
tl.show_progress(to_files)
tl.await_caught_up(to_files, trigger)

# COMMAND ----------

# DBTITLE 1,Rates and durations of batches
from operator import attrgetter

fields = ("batchId", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond", "batchDuration")
batches = spark.createDataFrame(
    list(map(attrgetter(*fields), to_files.recentProgress)),
    "batch BIGINT, records BIGINT, input_rate DOUBLE, processing_rate DOUBLE, milliseconds BIGINT",
)
display(batches)
assert batches.agg(F.sum("records")).first()[0] == sent

# COMMAND ----------

# DBTITLE 1,The folder
display(dbutils.fs.ls(run.located("files")))

# COMMAND ----------

# DBTITLE 1,The folder of a zip code
display(dbutils.fs.ls(run.located("files/zip=00501")))

# COMMAND ----------

# MAGIC %md
# MAGIC The article makes a table with `PARTITIONED BY (zip, day)`, and adds the folder of each partition by SQL.

# COMMAND ----------

# DBTITLE 1,Plain Spark: a table with partitions
spark.sql("DROP TABLE IF EXISTS article_hits")
spark.sql(
    "CREATE TABLE article_hits (hittime STRING, zip STRING, day STRING) USING parquet PARTITIONED BY (zip, day) "
    f"LOCATION '{plain}/article_hits'"
)
at_first = spark.table("article_hits").count()
of_day = f"{plain}/files/zip=00501/day=2026-01-02"
spark.sql(f"ALTER TABLE article_hits ADD PARTITION (zip = '00501', day = '2026-01-02') LOCATION '{of_day}'")
with_partition = spark.table("article_hits").count()
display(spark.sql("SHOW PARTITIONS article_hits"))

# COMMAND ----------

# DBTITLE 1,Wrong: missing days
of_partition = plain_files.where("zip = 501 AND day = DATE'2026-01-02'").count()
assert (at_first, with_partition) == (0, of_partition)
assert 0 < of_partition < plain_files.count()

# COMMAND ----------

# MAGIC %md
# MAGIC A row is missing until a command adds its partition. `tl.create_files_table` has the types as given, and its queries list
# MAGIC the files again.

# COMMAND ----------

# DBTITLE 1,Topiclake: a table with partitions
spark.sql("DROP TABLE IF EXISTS tutorial_hits")
tl.create_files_table(spark, settings, path=files_path, name="tutorial_hits", columns=dated.schema)

# COMMAND ----------

# DBTITLE 1,Its partitions by SQL
# MAGIC %sql
# MAGIC SELECT zip, day, count(*) AS hits FROM tutorial_hits GROUP BY zip, day ORDER BY day, zip

# COMMAND ----------

# DBTITLE 1,A new day without a command
days = spark.table("tutorial_hits").select("day").distinct().count()
isp.publish_hits(spark, settings, hits=200, seed=3, start="2026-01-04T03:00:00Z", minutes=10)
sent += 200
to_files = tl.start_files(
    dated,
    settings,
    path=files_path,
    checkpoint_path=f"{folder}/files_checkpoint",
    partition_by=["zip", "day"],
)
tl.await_caught_up(to_files, trigger)
assert spark.table("tutorial_hits").select("day").distinct().count() == days + 1
assert spark.table("tutorial_hits").count() == sent - 3

# COMMAND ----------

# DBTITLE 1,One zip code on that day
# MAGIC %sql
# MAGIC SELECT hittime, isp, city, url, status FROM tutorial_hits
# MAGIC WHERE zip = '00501' AND day = DATE'2026-01-04' ORDER BY hittime

# COMMAND ----------

# MAGIC %md
# MAGIC ## JDBC: a database
# MAGIC The article's `JDBCSink` is a class in Scala. It inserts the rows of each micro-batch into MySQL. The next cell does the same
# MAGIC with SQLite, which Python has. MySQL needs a server, and the wrong result is the same.

# COMMAND ----------

# DBTITLE 1,Plain Spark: inserts
import sqlite3
import tempfile

database = f"{tempfile.mkdtemp()}/stats.db"


def insert_counts(batch, number):
    """Insert the rows of a micro-batch."""
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS zip_test (zip TEXT, count INTEGER)")
        connection.executemany("INSERT INTO zip_test VALUES (?, ?)", batch.collect())


small_batches = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
small_batches = small_batches.option("subscribe", topic).option("startingOffsets", "earliest")
keys = small_batches.option("maxOffsetsPerTrigger", 1000).load().selectExpr("CAST(key AS STRING) AS zip")
inserting = keys.groupBy("zip").count().writeStream.outputMode("update").foreachBatch(insert_counts)
inserting.trigger(availableNow=True).start().awaitTermination()

# COMMAND ----------

# DBTITLE 1,Wrong: several rows per zip code
with sqlite3.connect(database) as connection:
    inserted = connection.execute("SELECT count(*), count(DISTINCT zip), sum(count) FROM zip_test").fetchone()
print(f"{inserted[0]} rows for {inserted[1]} zip codes, and {inserted[2]} hits where {sent} were sent")
assert inserted[0] > inserted[1]
assert inserted[2] > sent

# COMMAND ----------

# MAGIC %md
# MAGIC Each micro-batch adds rows for zip codes that have one already. A batch that is repeated after a crash adds them once
# MAGIC more. `tl.start_upsert` has one row for each zip code in MariaDB, MySQL or PostgreSQL, and each batch counts once.
# MAGIC
# MAGIC It needs the section `database` in `conf/` ([docs/sinks.md](../../docs/sinks.md)). Without it the next cell does nothing. The
# MAGIC tests of this tutorial run the cell with PostgreSQL and MariaDB.

# COMMAND ----------

# DBTITLE 1,Topiclake: one row per zip code
in_database = []
if settings.database:
    counted, table = isp.hits_per_zip(hits), topic.replace("-", "_")
    upsert = tl.start_upsert(
        counted, settings, table=table, keys=["zip"], checkpoint_path=f"{folder}/database_checkpoint"
    )
    tl.await_caught_up(upsert, trigger)
    in_database = isp.database_rows(settings, f"SELECT zip, count FROM {table} ORDER BY zip")
    display(spark.createDataFrame(in_database, "zip STRING, count BIGINT"))
    assert spark.createDataFrame(in_database, "zip STRING, count BIGINT").agg(F.sum("count")).first()[0] == sent - 3
    assert len(in_database) == 9

# COMMAND ----------

# MAGIC %md
# MAGIC ## Back to Kafka
# MAGIC The article's `KafkaSink` sends `zip:count` as value. It has no key.

# COMMAND ----------

# DBTITLE 1,Plain Spark: counts into a topic
plain_topic, brokers_of = f"{topic}-plain", {"kafka.bootstrap.servers": brokers}
tl.ensure_topic(settings.kafka, plain_topic, 4)
pairs = hits_text.groupBy("zip").count().selectExpr("concat(zip, ':', count) AS value")
to_plain = pairs.writeStream.format("kafka").options(**brokers_of).option("topic", plain_topic)
to_plain = to_plain.option("checkpointLocation", f"{plain}/topic_checkpoint").outputMode("update")
to_plain.trigger(availableNow=True).start().awaitTermination()
in_plain_topic = spark.read.format("kafka").options(**brokers_of).option("subscribe", plain_topic).load()
display(in_plain_topic.selectExpr("key", "CAST(value AS STRING) AS value", "partition", "offset"))

# COMMAND ----------

# DBTITLE 1,Wrong: counts without a key
assert in_plain_topic.where("value IS NULL").count() == 1
assert in_plain_topic.where("key IS NOT NULL").count() == 0

# COMMAND ----------

# MAGIC %md
# MAGIC The count of the damaged records is a record without a value. No record has a key, so the counts of one zip code are in
# MAGIC any partition, in no order. A consumer cannot find the newest one.
# MAGIC
# MAGIC In mode `complete` each micro-batch sends all counts again.

# COMMAND ----------

# DBTITLE 1,Plain Spark: counts in mode complete
complete_topic = f"{topic}-plain-complete"
tl.ensure_topic(settings.kafka, complete_topic, 1)
all_pairs = keys.groupBy("zip").count().selectExpr("concat(zip, ':', count) AS value")
to_complete = all_pairs.writeStream.format("kafka").options(**brokers_of).option("topic", complete_topic)
to_complete = to_complete.option("checkpointLocation", f"{plain}/complete_checkpoint").outputMode("complete")
to_complete.trigger(availableNow=True).start().awaitTermination()
in_complete_topic = spark.read.format("kafka").options(**brokers_of).option("subscribe", complete_topic).load()
counts_sent = in_complete_topic.selectExpr("substring_index(CAST(value AS STRING), ':', 1) AS zip").groupBy("zip").count()
display(counts_sent.orderBy("zip"))

# COMMAND ----------

# DBTITLE 1,Wrong: old counts
assert counts_sent.where("count > 1").count() > 0
assert in_complete_topic.where("key IS NOT NULL").count() == 0

# COMMAND ----------

# MAGIC %md
# MAGIC `tl.start_topic_writer` sends records with keys. Mode `update` sends the counts that a micro-batch changed. Mode
# MAGIC `complete` sends all counts with each micro-batch.

# COMMAND ----------

# DBTITLE 1,Topiclake: counts into topics, live
live = run.settings("table", trigger="1 second")
counts = isp.count_records(isp.hits_per_zip(tl.read_values(spark, live)))
changed_topic, whole_topic = f"{topic}-update", f"{topic}-complete"
tl.ensure_topic(settings.kafka, changed_topic, 1)
tl.ensure_topic(settings.kafka, whole_topic, 1)
changed = tl.start_topic_writer(
    counts, live, topic=changed_topic, checkpoint_path=f"{folder}/update_checkpoint", output_mode="update"
)
whole = tl.start_topic_writer(
    counts, live, topic=whole_topic, checkpoint_path=f"{folder}/complete_checkpoint", output_mode="complete"
)
tl.await_caught_up(changed, "1 second")
tl.await_caught_up(whole, "1 second")

# COMMAND ----------

# DBTITLE 1,Two more hits
def count_of(name):
    """Return the number of records of a topic."""
    return spark.read.format("kafka").options(**brokers_of).option("subscribe", name).load().count()


changed_before, whole_before = count_of(changed_topic), count_of(whole_topic)
isp.publish_hits(spark, settings, hits=2, seed=4, start="2026-01-04T04:00:00Z", minutes=1)
sent += 2
tl.await_caught_up(changed, "1 second")
tl.await_caught_up(whole, "1 second")
changed.stop()
whole.stop()
changed_records, whole_records = count_of(changed_topic), count_of(whole_topic)
print(f"update: {changed_records - changed_before} more records; complete: {whole_records - whole_before}")
assert 1 <= changed_records - changed_before <= 2
assert whole_records - whole_before >= 9

# COMMAND ----------

# DBTITLE 1,Consumed records of mode update
from topiclake_examples.console import consume

changed_lines = consume(settings, changed_topic, changed_records)
print(*changed_lines, sep="\n")

# COMMAND ----------

# DBTITLE 1,Consumed records of mode complete
whole_lines = consume(settings, whole_topic, whole_records)
print(*whole_lines[-9:], sep="\n")

# COMMAND ----------

# DBTITLE 1,Newest count of each zip code
from importlib.util import find_spec

newest = tl.read_compacted(spark, settings, topic=changed_topic).selectExpr(
    "CAST(key AS STRING) AS zip", "CAST(CAST(value AS STRING) AS BIGINT) AS count"
)
display(newest.orderBy("zip"))
assert newest.agg(F.sum("count")).first()[0] == sent - 3
# Databricks has no console consumer.
has_consumer = find_spec("workbench") is not None
assert len(changed_lines) == has_consumer * changed_records
assert len(whole_lines) == has_consumer * whole_records

# COMMAND ----------

import json

result = {
    "sent": sent,
    "rejected": 3,
    "zip_codes": newest.count(),
    "closed_windows": per_window.count(),
    "in_files": spark.table("tutorial_hits").count(),
    "in_database": len(in_database),
}
dbutils.notebook.exit(json.dumps(result))
