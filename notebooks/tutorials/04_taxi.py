# Databricks notebook source
# MAGIC %md
# MAGIC # Tutorial 4: taxi trips from Kafka to S3, and the calls of a checkpoint
# MAGIC
# MAGIC This tutorial follows the article about New York's taxi trips: CSV files on S3, Avro in Kafka, Spark on Kubernetes, and
# MAGIC Parquet files on S3. Each step has the article's code in plain Spark. An assertion shows the wrong result of that code.
# MAGIC Then a call of Topiclake replaces it.
# MAGIC
# MAGIC **Run it** from top to bottom, as often as you like: `python -m workbench run notebooks/tutorials/04_taxi.py`. Each
# MAGIC run has new topics and new folders, and publishes the trips itself. The plain cells need a broker without a login.
# MAGIC For the table of calls start the S3 store with `python -m workbench up --with s3`, and add `-p env=local-s3`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | the names of each run's topics begin with it | |
# MAGIC | `storage` | `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the folders of all runs are below it | |
# MAGIC | `trips` | the number of trips that the generator makes | |
# MAGIC | `access_log` | the access log of the S3 store | that of the workbench |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

shared = tl.notebook_settings(dbutils, "storage", pipeline="taxi", topic="tutorial-taxi", trips="1000000",
                              table_path="/mnt/datalake/tutorials/taxi", access_log="")
tl.mount(dbutils, shared.storage, spark)

# COMMAND ----------

# DBTITLE 1,Topics and folder of this run
from topiclake_examples.tutorials import TutorialRun

topic, folder = f"{shared.pipeline.topic}-{shared.run_id[:8]}", f"{shared.pipeline.location}/{shared.run_id[:8]}"
run = TutorialRun(shared, topic, folder, dbutils.secrets.get)
settings, plain = run.settings("archive", trigger="1 second"), run.located("plain")
kafka = {"kafka.bootstrap.servers": settings.kafka.bootstrap_servers}
print(topic, folder, sep="\n")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The producer
# MAGIC The article's producer reads CSV files from the path in the environment variable `INPUT_PATH`. On Kubernetes
# MAGIC `deploy/kubernetes/taxi-publish.yaml` runs the notebook `taxi_publish`, whose parameter `source` is that path.

# COMMAND ----------

# DBTITLE 1,The input
import os

input_path = os.environ.get("INPUT_PATH", "../../data/yellow_tripdata_2019-01_sample.csv")
print(input_path)

# COMMAND ----------

# DBTITLE 1,Plain Spark: the producer
from pathlib import Path
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

address = input_path if ":" in input_path else Path(input_path).resolve().as_uri()
plain_topic = f"{topic}-plain"
tl.ensure_topic(shared.kafka, plain_topic, 10)
lines = spark.read.option("header", "true").option("inferSchema", "true").csv(address).limit(1000)
values = lines.select(to_avro(F.struct(*lines.columns)).alias("value"))
values.write.format("kafka").options(**kafka).option("topic", plain_topic).save()
lines.printSchema()

# COMMAND ----------

# DBTITLE 1,Wrong: no keys, no local times
sent = spark.read.format("kafka").options(**kafka).option("subscribe", plain_topic).load()
assert sent.where("key IS NULL").count() == sent.count() == 1000
assert dict(lines.dtypes)["tpep_pickup_datetime"] == "timestamp"

# COMMAND ----------

# MAGIC %md
# MAGIC A trip's time is New York's own, without a zone. As TIMESTAMP it changes with the zone of the cluster. Values without a
# MAGIC schema id do not say which schema they have. A second run sends each trip once more, under no key.
# MAGIC
# MAGIC `taxi.publish_trips` checks each line, registers the article's schema of 17 columns, keys trips by zone, and has times
# MAGIC without a zone. The generator makes as many trips as wanted, of the 10,000 real ones.

# COMMAND ----------

# DBTITLE 1,Topiclake: the producer
import time
from topiclake_examples import taxi

trips, started = int(dbutils.widgets.get("trips")), time.monotonic()
published = taxi.publish_trips(spark, settings, input_path, trips=trips)
seconds = time.monotonic() - started
print(f"{published.records} trips in {seconds:.0f} s, to {published.partitions} partitions")
assert published.records == trips

# COMMAND ----------

# DBTITLE 1,112 million trips
year = taxi.generate_trips(taxi.read_trips(spark, address), 112_000_000, 1)
display(year.limit(5))
print(f"at the rate of this run the article's 112 million trips take {112e6 * seconds / trips / 60:.0f} minutes")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The consumer
# MAGIC The article's consumer decodes Avro with one schema, and writes Parquet files.

# COMMAND ----------

# DBTITLE 1,Trips of two schema versions
import json

two_versions = run.settings("versions", topic=f"{topic}-versions", avro_form="plain")
taxi.publish_trips(spark, two_versions, input_path, trips=1000)
taxi.publish_trips(spark, two_versions, input_path, trips=1000, columns=18, seed=2)

# COMMAND ----------

# DBTITLE 1,Plain Spark: the consumer
article_schema = json.dumps(taxi.TRIP_SCHEMAS[17])
values = spark.readStream.format("kafka").options(**kafka).option("subscribe", two_versions.pipeline.topic)
values = values.option("startingOffsets", "earliest").load()
decoded = values.select(from_avro("value", article_schema, {"mode": "PERMISSIVE"}).alias("trip")).select("trip.*")
parquet = decoded.writeStream.format("parquet").option("path", f"{plain}/versions")
parquet = parquet.option("checkpointLocation", f"{plain}/versions_checkpoint").trigger(availableNow=True)
parquet.start().awaitTermination()
plain_trips = spark.read.parquet(f"{plain}/versions")
print(plain_trips.count(), len(plain_trips.columns))

# COMMAND ----------

# DBTITLE 1,Wrong: a lost column
assert plain_trips.count() == 2000
assert "congestion_surcharge" not in plain_trips.columns

# COMMAND ----------

# MAGIC %md
# MAGIC `from_avro` ignores the bytes of the column that came with the second version. `tl.start_archive` decodes each trip by its
# MAGIC own schema. A record with other bytes ends the stream, with topic, partition, offset and reason.

# COMMAND ----------

# DBTITLE 1,Topiclake: both versions
archive = tl.start_archive(spark, two_versions)
archive.await_caught_up()
both = archive.rows()
surcharges = both.where("congestion_surcharge IS NOT NULL").count()
print(f"{both.count()} trips, {surcharges} with a surcharge")
assert both.count() == 2000
assert surcharges > 0

# COMMAND ----------

# MAGIC %md
# MAGIC ## A stream that continues
# MAGIC The article's consumer runs on Kubernetes without an end. `deploy/kubernetes/taxi-archive.yaml` runs `taxi_archive` there.
# MAGIC With an interval as trigger the stream continues after what Kafka held. Here it archives the million trips. Then trips
# MAGIC with a new column arrive while it runs.

# COMMAND ----------

# DBTITLE 1,Topiclake: the archive of all trips
archive = tl.start_archive(spark, settings)
tl.show_progress(archive.query)
archive.await_caught_up()
assert archive.query.isActive
assert archive.rows().count() == trips

# COMMAND ----------

# DBTITLE 1,New column in a running stream
taxi.publish_trips(spark, settings, input_path, trips=1000, columns=18, seed=3)
archive.await_caught_up()
archive.keep_running("2")
assert archive.query.isActive
summary = archive.summary()
archive.create_view()
archive.stop()
display(summary.counts(spark))
assert summary.rows == trips + 1000
assert summary.restarts == 1

# COMMAND ----------

# DBTITLE 1,Trips and fares of a month
# MAGIC %sql
# MAGIC SELECT date_trunc('MONTH', tpep_pickup_datetime) AS month, count(*) AS trips, round(avg(total_amount), 2) AS dollars
# MAGIC FROM taxi GROUP BY ALL ORDER BY month

# COMMAND ----------

# DBTITLE 1,Trips by month
display(_sqldf.plot.bar(x="month", y="trips"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The calls of a checkpoint on S3
# MAGIC Each micro-batch writes files into the checkpoint. Spark's default writes a file under another name and renames it. On S3 a
# MAGIC rename is a copy and a delete. In a bucket with versions a deleted key gets a delete marker.
# MAGIC
# MAGIC | side | checkpoint files |
# MAGIC |---|---|
# MAGIC | Spark's defaults | written, listed and renamed |
# MAGIC | a checkpoint manager | Spark's `AbortableStreamBasedCheckpointFileManager`: one upload each |
# MAGIC | Topiclake | one conditional PUT each, and no call that asks twice; two drivers do no harm |
# MAGIC
# MAGIC The three sides read the same trips, in ten micro-batches. The access log of the store has their calls. The embedded store
# MAGIC does not log the bytes of `GetObject`, and its bucket has no versions. The column `single_deletes` counts the calls of
# MAGIC `DeleteObject`. `DeleteObjects`, which deletes several keys, is a separate kind in the first table.

# COMMAND ----------

# DBTITLE 1,The sides
access_log = dbutils.widgets.get("access_log") or os.environ.get("WORKBENCH_S3_ACCESS_LOG", "")
is_counted = bool(access_log) and plain.startswith("s3a:")
MANAGER, FLAGS, NO_CACHE = (
    "spark.sql.streaming.checkpointFileManagerClass", "fs.s3a.performance.flags", "fs.s3a.impl.disable.cache"
)
ours = {MANAGER: spark.conf.get(MANAGER, ""), FLAGS: "*", NO_CACHE: "false"}
spark_defaults = ours | {
    MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager",
    FLAGS: "",
    NO_CACHE: "true",
}
with_manager = spark_defaults | {
    MANAGER: "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
}


def drain(side):
    """Archive the trips of both versions in ten micro-batches, as one of the sides does."""
    if side == "topiclake":
        keys = {"topic": f"{topic}-versions", "avro_form": "plain", "max_offsets_per_trigger": "200"}
        of_side = run.settings(side, **keys)
        return tl.start_archive(spark, of_side).await_caught_up()
    batches = spark.readStream.format("kafka").options(**kafka).option("subscribe", f"{topic}-versions")
    batches = batches.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 200).load()
    rows = batches.select(from_avro("value", article_schema, {"mode": "PERMISSIVE"}).alias("trip")).select("trip.*")
    name = side.replace(" ", "_").replace("'", "")
    writer = rows.writeStream.format("parquet").option("path", f"{plain}/{name}").trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{plain}/{name}_checkpoint").start().awaitTermination()


def measure(side, options):
    """Run a side with its options of the session, and return what the store was asked."""
    list(map(spark.conf.set, options.keys(), options.values()))
    since, begun = taxi.log_size(access_log), time.monotonic()
    drain(side)
    elapsed = time.monotonic() - begun
    list(map(spark.conf.set, ours.keys(), ours.values()))
    time.sleep(1)  # The last lines of the log are on their way.
    return side, taxi.count_calls(access_log, since), elapsed

# COMMAND ----------

# DBTITLE 1,Calls by kind
from dataclasses import astuple
from itertools import chain


def kinds_of(side):
    """Return the calls of a side by kind, as rows."""
    return list(map(lambda count: (side[0], *astuple(count)), side[1]))


measured = []
if is_counted:
    measured = [
        measure("spark's defaults", spark_defaults),
        measure("a checkpoint manager", with_manager),
        measure("topiclake", ours),
    ]
    kinds = list(chain.from_iterable(map(kinds_of, measured)))
    columns = "side STRING, operation STRING, calls INT, bytes BIGINT, store_seconds DOUBLE, keys INT"
    display(spark.createDataFrame(kinds, columns))
else:
    print("no access log of an S3 store; try: python -m workbench up --with s3, then -p env=local-s3")

# COMMAND ----------

# DBTITLE 1,Totals of each side
totals = []
if is_counted:
    totals = list(map(lambda side: (side[0], *taxi.summarize_calls(side[1]), round(side[2], 1)), measured))
    columns = "side STRING, calls INT, bytes BIGINT, store_seconds DOUBLE, objects INT, single_deletes INT, seconds DOUBLE"
    display(spark.createDataFrame(totals, columns))
    assert totals[0][1] > totals[1][1] > totals[2][1]
    assert totals[0][5] > totals[2][5] == 0

# COMMAND ----------

result = {
    "trips": trips,
    "partitions": published.partitions,
    "columns_of_the_article": len(plain_trips.columns),
    "columns": len(both.columns) - 1,
    "archived": summary.rows,
    "restarts": summary.restarts,
    "calls_counted": is_counted,
}
dbutils.notebook.exit(json.dumps(result))
