# Databricks notebook source
# MAGIC %md
# MAGIC # Tutorial 3: nested JSON, a join, a compacted topic and a report
# MAGIC
# MAGIC This tutorial follows the article "Processing Data in Apache Kafka with Structured Streaming in Apache Spark 2.2"
# MAGIC (Databricks, April 2017). Each step has the article's code in plain Spark. An assertion shows the wrong result of that
# MAGIC code. Then a call of Topiclake replaces it.
# MAGIC
# MAGIC **Run it** from top to bottom, as often as you like: `python -m workbench run notebooks/tutorials/03_nest.py`. Each
# MAGIC run has new topics and new folders, and publishes the logs itself. The plain cells need a broker without a login.
# MAGIC The cells with Topiclake use the logins of `conf/`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | the names of each run's topics begin with it | |
# MAGIC | `storage` | `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the folders of all runs are below it | |
# MAGIC | `logs` | the number of logs of each publishing | |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

shared = tl.notebook_settings(dbutils, "storage", pipeline="nest", topic="tutorial-nest",
                              table_path="/mnt/datalake/tutorials/nest", logs="300")
tl.mount(dbutils, shared.storage, spark)

# COMMAND ----------

# DBTITLE 1,Topics and folder of this run
from topiclake_examples.tutorials import TutorialRun

topic, folder = f"{shared.pipeline.topic}-{shared.run_id[:8]}", f"{shared.pipeline.location}/{shared.run_id[:8]}"
run = TutorialRun(shared, topic, folder, dbutils.secrets.get)
settings = run.settings("nest")
location_settings = run.settings(
    "nest_locations", pipeline="nest_locations", topic=f"{topic}-device-locations"
)
tl.set_state(spark, settings)
trigger, plain = settings.pipeline.trigger, run.located("plain")
kafka = {"kafka.bootstrap.servers": settings.kafka.bootstrap_servers}
print(topic, folder, sep="\n")

# COMMAND ----------

# DBTITLE 1,Logs to read
from topiclake_examples import nest

logs = int(dbutils.widgets.get("logs"))
published = nest.publish_nest_logs(
    spark, settings, location_settings, logs=logs, homes=6, offline=3, damaged=3
)
print(f"{published.records} logs of 6 homes with {published.cameras} cameras; 3 of the logs are cut off")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The raw stream

# COMMAND ----------

# DBTITLE 1,Plain Spark: the stream
records = (
    spark.readStream.format("kafka")
    .options(**kafka)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
records.printSchema()

# COMMAND ----------

# DBTITLE 1,A log
whole = tl.read_batch(spark, settings).where("length(value) > 40").orderBy("partition", "offset")
log = whole.selectExpr("CAST(value AS STRING) AS value").first()["value"]
print(log)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The schema, and the time's pattern
# MAGIC A log has thermostats, smoke alarms and cameras, each as a map by id. `companyName` has devices of another company.
# MAGIC The article's schema calls one field of a camera `is_audio_input_enable`. Its pattern of times ends in `ss.sss'Z'`.

# COMMAND ----------

# DBTITLE 1,Plain Spark: the article's pattern
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

article_pattern = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.sss'Z'"}
time = spark.createDataFrame([('{"start_time": "2026-01-02T03:00:07.250Z"}',)], "value STRING")
refusal = ""
try:
    time.select(F.from_json("value", "start_time TIMESTAMP", article_pattern)).collect()
except PySparkException as error:
    refusal = str(error.getCondition())
print(refusal)

# COMMAND ----------

# DBTITLE 1,Wrong: a refused pattern
assert refusal.startswith("INCONSISTENT_BEHAVIOR_CROSS_VERSION")

# COMMAND ----------

# DBTITLE 1,Plain Spark: another pattern
letter = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "America/Los_Angeles"}
zone = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSX", "timeZone": "America/Los_Angeles"}


def seconds(options):
    """Return the seconds since 1970 that a pattern reads."""
    parsed_time = F.from_json("value", "start_time TIMESTAMP", options)
    return time.select(F.unix_seconds(parsed_time["start_time"])).first()[0]


print(f"'Z' in quotes: {(seconds(letter) - seconds(zone)) / 3600} hours late")

# COMMAND ----------

# DBTITLE 1,Wrong: eight hours late
assert seconds(letter) - seconds(zone) == 8 * 3600

# COMMAND ----------

# MAGIC %md
# MAGIC `Z` in quotes is a mere letter, so the time is one of the cluster's zone. `X` reads the zone. The pipeline `nest` says
# MAGIC `timestamp_format: yyyy-MM-dd'T'HH:mm:ss.SSSX`.

# COMMAND ----------

# DBTITLE 1,Plain Spark: parsed logs
article_schema = str(settings.pipeline.value_schema).replace("is_audio_input_enabled", "is_audio_input_enable")
pattern = {"timestampFormat": str(settings.pipeline.timestamp_format)}
parsed = records.select(
    F.from_json(F.col("value").cast("string"), article_schema, pattern).alias("parsed_value")
)
parsed.printSchema()

# COMMAND ----------

# DBTITLE 1,Plain Spark: cameras
camera = parsed.select(F.explode("parsed_value.devices.cameras")).select("value.*")
in_memory = camera.selectExpr("device_id", "is_audio_input_enable", "is_online", "last_event.has_person")
to_memory = in_memory.writeStream.format("memory").queryName("plain_cameras").trigger(availableNow=True)
to_memory.start().awaitTermination()
plain_cameras = spark.table("plain_cameras")
display(plain_cameras)

# COMMAND ----------

# DBTITLE 1,Wrong: a column of nulls
assert plain_cameras.count() > 0
assert plain_cameras.where("is_audio_input_enable IS NOT NULL").count() == 0

# COMMAND ----------

# MAGIC %md
# MAGIC The logs say `is_audio_input_enabled`. A field that the schema names otherwise is null, without an error. And `explode` of a
# MAGIC damaged log has no row, so three logs are lost without a trace.
# MAGIC
# MAGIC `tl.read_values` has the columns of `conf/pipelines/nest.yaml`. The field `companyName` is `NOT NULL` there, so a log
# MAGIC without it is rejected. A rejected log goes to the quarantine, with its offset and a reason.

# COMMAND ----------

# DBTITLE 1,Topiclake: cameras
cameras = nest.nest_cameras(tl.read_values(spark, settings))
cameras.printSchema()

# COMMAND ----------

# DBTITLE 1,Topiclake: rejected logs
tl.await_caught_up(tl.start_quarantine(spark, settings), trigger)
rejected = tl.quarantine_reasons(spark, settings)
display(rejected)

# COMMAND ----------

# DBTITLE 1,Topiclake: a column without nulls
decoded = nest.nest_cameras(tl.decode_values(tl.read_batch(spark, settings), settings))
of_first_logs = decoded.count()
assert rejected.agg(F.sum("waiting")).first()[0] == 3
assert of_first_logs == plain_cameras.count()
assert decoded.where("is_audio_input_enabled IS NULL").count() == 0
sightings = decoded.where("last_event.has_person").count()
print(f"{of_first_logs} states of cameras, {sightings} sightings of persons")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A join with a static table
# MAGIC The zip codes of the cameras are in a file. The article joins them with the stream.

# COMMAND ----------

# DBTITLE 1,The static table, from a file
from pathlib import Path

locations_file = Path("../../data/nest_device_locations.csv").resolve().as_uri()
spark.read.option("header", "true").csv(locations_file).createOrReplaceTempView("tutorial_locations")
locations = spark.table("tutorial_locations")

# COMMAND ----------

# DBTITLE 1,Zip codes of the cameras
# MAGIC %sql
# MAGIC SELECT zip_code, city, count(*) AS cameras FROM tutorial_locations GROUP BY zip_code, city ORDER BY zip_code

# COMMAND ----------

# DBTITLE 1,Plain Spark: an inner join
seen = camera.where("last_event.has_person").select("device_id", "last_event.start_time")
joined = seen.join(locations.select("device_id", "zip_code"), "device_id")
to_memory = joined.writeStream.format("memory").queryName("plain_joined").trigger(availableNow=True)
to_memory.start().awaitTermination()
lost = sightings - spark.table("plain_joined").count()
print(f"{lost} of {sightings} sightings are lost")

# COMMAND ----------

# DBTITLE 1,Wrong: lost sightings
assert 0 < lost < sightings

# COMMAND ----------

# MAGIC %md
# MAGIC The file lacks the three cameras of a new home. An inner join drops their sightings. `nest.sightings_per_hour` counts
# MAGIC them for the zip code null.

# COMMAND ----------

# DBTITLE 1,Topiclake: all sightings
tl.await_caught_up(tl.start_memory(nest.sightings_per_hour(cameras, locations), "by_file"), trigger)
by_file = spark.table("by_file")
display(by_file.orderBy("start", "zip_code"))
assert by_file.agg(F.sum("count")).first()[0] == sightings
assert by_file.where("zip_code IS NULL").agg(F.sum("count")).first()[0] == lost

# COMMAND ----------

# MAGIC %md
# MAGIC A static table can be a topic, too. `nest_locations` has lines of an old system, which a function of
# MAGIC `topiclake_examples` decodes. A stream that joins the Delta table sees new lines.

# COMMAND ----------

# DBTITLE 1,Topiclake: the locations from a topic
tl.await_caught_up(tl.start_ingest(spark, location_settings), trigger)
device_locations = nest.device_locations(spark, location_settings)
assert device_locations.count() == published.cameras == 12

# COMMAND ----------

# MAGIC %md
# MAGIC ## Counts by zip code and hour, back to Kafka
# MAGIC The article writes all counts with each micro-batch, in mode `complete`.

# COMMAND ----------

# DBTITLE 1,Plain Spark: counts into a topic
plain_stats = f"{topic}-plain-stats"
tl.ensure_topic(settings.kafka, plain_stats, 1)
small = spark.readStream.format("kafka").options(**kafka).option("subscribe", topic)
small = small.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", logs // 2).load()
small = small.select(F.from_json(F.col("value").cast("string"), article_schema, pattern).alias("parsed_value"))
small = small.select(F.explode("parsed_value.devices.cameras")).select("value.*")
small = small.where("last_event.has_person").select("device_id", "last_event.start_time")
stats = small.join(locations, "device_id").groupBy("zip_code", F.window("start_time", "1 hour")).count()
stats = stats.select(F.to_json(F.struct("zip_code", "window")).alias("key"), F.col("count").cast("string").alias("value"))
to_stats = stats.writeStream.format("kafka").options(**kafka).option("topic", plain_stats).outputMode("complete")
to_stats = to_stats.option("checkpointLocation", f"{plain}/stats_checkpoint").trigger(availableNow=True)
to_stats.start().awaitTermination()

# COMMAND ----------

# DBTITLE 1,Plain Spark: the article's report
stat_records = spark.read.format("kafka").options(**kafka).option("subscribe", plain_stats).load()
plain_report = stat_records.select(
    F.get_json_object(F.col("key").cast("string"), "$.zip_code").alias("zip_code"),
    F.get_json_object(F.col("key").cast("string"), "$.window.start").alias("start"),
    F.col("value").cast("string").cast("integer").alias("count"),
)
display(plain_report.orderBy("zip_code", "start", "count"))

# COMMAND ----------

# DBTITLE 1,Wrong: old counts in the report
reported_twice = plain_report.count() - plain_report.select("zip_code", "start").distinct().count()
print(f"{reported_twice} counts are old")
assert reported_twice > 0
assert plain_report.agg(F.sum("count")).first()[0] > sightings - lost

# COMMAND ----------

# MAGIC %md
# MAGIC The topic has each count as often as there were micro-batches, and the report adds up old counts and new ones. The topic
# MAGIC of `tl.ensure_topic(…, compacted=True)` does not lose the newest record of a key, and `tl.read_compacted` returns that
# MAGIC record alone, whatever Kafka still holds.

# COMMAND ----------

# DBTITLE 1,Topiclake: counts into a compacted topic
stats_topic = f"{topic}-camera-stats"
tl.ensure_topic(settings.kafka, stats_topic, 4, compacted=True)
to_stats = tl.start_topic_writer(
    nest.sighting_records(nest.sightings_per_hour(cameras, device_locations)),
    settings,
    checkpoint_path=f"{folder}/stats_checkpoint",
    topic=stats_topic,
    output_mode="complete",
)
tl.await_caught_up(to_stats, trigger)

# COMMAND ----------

# DBTITLE 1,Topiclake: the report
report = nest.sightings_report(tl.read_compacted(spark, settings, topic=stats_topic), more_than=0)
display(report)
assert report.agg(F.sum("count")).first()[0] == sightings
assert report.select("zip_code", "start").distinct().count() == report.count()

# COMMAND ----------

# DBTITLE 1,The report as a chart
displayHTML(nest.sightings_chart(report))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Offline cameras
# MAGIC The article looks for cameras whose field `is_online` is false.

# COMMAND ----------

# DBTITLE 1,Plain Spark: offline cameras
plain_offline = plain_cameras.where("NOT is_online")
display(plain_offline.groupBy("device_id").count())
offline_rows = plain_offline.count()
assert plain_offline.select("device_id").distinct().count() == 3
assert offline_rows > 3

# COMMAND ----------

# MAGIC %md
# MAGIC Each log of an offline camera is one more alarm, and no row says that a camera is online again. `nest.camera_states` has
# MAGIC the newest state of each camera. `tl.notify_batches` sends a notification when a camera goes offline, and one when it is back.

# COMMAND ----------

# DBTITLE 1,Topiclake: states and notifications
states = {
    "states": tl.delta_batches(
        settings, spark, path=f"{folder}/states", mode="merge", keys=["device_id"]
    ),
    "notices": tl.notify_batches(
        settings, spark, path=f"{folder}/notices", notifications=nest.camera_notifications
    ),
}


def update_states():
    """Merge the newest states into the table, and send notifications of what changed."""
    rows = nest.camera_states(nest.nest_cameras(tl.read_values(spark, settings)))
    checkpoint = f"{folder}/states_checkpoint"
    query = tl.start_sinks(rows, settings, states, checkpoint_path=checkpoint, output_mode="update")
    tl.await_caught_up(query, trigger)


update_states()
camera_states = spark.read.format("delta").load(run.located("states"))
offline = camera_states.where("NOT is_online").orderBy("device_id")
display(offline)
offline_cameras = offline.count()
assert offline_cameras == 3

# COMMAND ----------

# DBTITLE 1,Cameras online three hours later
nest.publish_nest_logs(
    spark, settings, location_settings, logs=logs, homes=6, offline=0, seed=2, start="2026-01-02T06:00:00Z"
)
update_states()
camera_states = spark.read.format("delta").load(run.located("states"))
notifications = spark.read.format("delta").load(run.located("notices"))
display(notifications.select("since", "text").orderBy("since", "subject"))
assert camera_states.where("NOT is_online").count() == 0
assert notifications.where("is_wrong").count() == notifications.where("NOT is_wrong").count() == 3

# COMMAND ----------

# MAGIC %md
# MAGIC ## The archive
# MAGIC The article stores all cameras as Parquet files. Other formats are one word of code.

# COMMAND ----------

# DBTITLE 1,Plain Spark: Parquet files
to_files = camera.writeStream.format("parquet").option("path", f"{plain}/parquet").trigger(availableNow=True)
to_files.option("checkpointLocation", f"{plain}/parquet_checkpoint").start().awaitTermination()
plain_files = spark.read.parquet(f"{plain}/parquet")
display(plain_files.select("device_id", "is_audio_input_enable", "last_event"))

# COMMAND ----------

# DBTITLE 1,Wrong: nulls in the archive
assert plain_files.count() > plain_cameras.count()
assert plain_files.where("is_audio_input_enable IS NOT NULL").count() == 0

# COMMAND ----------

# DBTITLE 1,Plain Spark: CSV files
refusal = ""
try:
    to_csv = camera.writeStream.format("csv").option("path", f"{plain}/csv").trigger(availableNow=True)
    to_csv.option("checkpointLocation", f"{plain}/csv_checkpoint").start().awaitTermination()
except PySparkException as error:
    refusal = str(error)
print(refusal[:200])

# COMMAND ----------

# DBTITLE 1,Wrong: no nested columns in CSV
assert "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE" in refusal

# COMMAND ----------

# MAGIC %md
# MAGIC `tl.start_files` writes Parquet files, each row once. One query of `tl.start_sinks` writes the rows into a Delta table and
# MAGIC into ORC, Avro and CSV files. Those three come from a sink of the example package
# MAGIC ([docs/own_sinks.md](../../docs/own_sinks.md)). It makes JSON of nested columns for CSV.

# COMMAND ----------

# DBTITLE 1,Topiclake: Parquet files by day
dated = nest.dated_cameras(nest.nest_cameras(tl.read_values(spark, settings)))
to_parquet = tl.start_files(
    dated,
    settings,
    path=f"{folder}/parquet",
    checkpoint_path=f"{folder}/parquet_checkpoint",
    partition_by=["year", "month", "day"],
)
tl.await_caught_up(to_parquet, trigger)
spark.sql("DROP TABLE IF EXISTS tutorial_nest")
tl.create_files_table(spark, settings, path=f"{folder}/parquet", name="tutorial_nest", columns=dated.schema)
display(dbutils.fs.ls(run.located("parquet")))

# COMMAND ----------

# DBTITLE 1,The archive by SQL
# MAGIC %sql
# MAGIC SELECT year, month, day, count(*) AS states, count_if(last_event.has_person) AS sightings
# MAGIC FROM tutorial_nest GROUP BY year, month, day ORDER BY ALL

# COMMAND ----------

# DBTITLE 1,Topiclake: four formats from one read
archives = {
    "delta": tl.delta_batches(settings, spark, path=f"{folder}/delta"),
    "orc": nest.file_batches(settings, path=f"{folder}/orc", file_format="orc"),
    "avro": nest.file_batches(settings, path=f"{folder}/avro", file_format="avro"),
    "csv": nest.file_batches(settings, path=f"{folder}/csv", file_format="csv"),
}
query = tl.start_sinks(
    dated, settings, archives, checkpoint_path=f"{folder}/archive_checkpoint", name="archive"
)
tl.await_caught_up(query, trigger)

# COMMAND ----------

# DBTITLE 1,The same rows in each format
def archived(file_format):
    """Return the rows of an archive."""
    address = run.located(file_format)
    return spark.read.format(file_format).option("header", "true").load(address)


def summary(file_format):
    """Return format, rows, and the type of a time and of a nested column."""
    rows = archived(file_format)
    types = dict(rows.dtypes)
    return file_format, rows.count(), types["last_is_online_change"], types["last_event"][:20]


formats = spark.createDataFrame(
    list(map(summary, ["parquet", "delta", "orc", "avro", "csv"])),
    "format STRING, rows BIGINT, last_is_online_change STRING, last_event STRING",
)
display(formats)
in_archive = spark.table("tutorial_nest").count()
assert formats.where(f"rows = {in_archive}").count() == 5
assert in_archive > of_first_logs

# COMMAND ----------

# MAGIC %md
# MAGIC CSV loses the types: a time is text there, and a struct is JSON. ORC, Avro, Parquet and Delta have them. The Parquet folder
# MAGIC and the Delta table have a log of the files that count. In the other three folders a repeated batch replaces itself.

# COMMAND ----------

import json

result = {
    "logs": 2 * logs,
    "rejected": 3,
    "sightings": sightings,
    "lost_by_inner_join": lost,
    "reported": report.count(),
    "offline_rows": offline_rows,
    "offline": offline_cameras,
    "notices": notifications.count(),
    "archived": in_archive,
}
dbutils.notebook.exit(json.dumps(result))
