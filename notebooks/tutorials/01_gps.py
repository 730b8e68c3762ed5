# Databricks notebook source
# MAGIC %md
# MAGIC # Tutorial 1: GPS positions from Kafka to Delta Lake
# MAGIC
# MAGIC This tutorial follows the article "From Kafka to Delta Lake using Apache Spark Structured Streaming" (Michelin). Each step
# MAGIC is plain Spark first, as in the article. Then a cell computes what goes wrong there. Then a call of the library replaces it.
# MAGIC
# MAGIC **Run it** with `python -m workbench run notebooks/tutorials/01_gps.py`. Each run has its own topic and its own folder,
# MAGIC so a second run does no harm. The plain cells know no login of a broker, so this notebook is for the embedded services.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | begin of the topic's name; empty: from conf |
# MAGIC | `storage` | where tables and checkpoints are stored; empty: from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", pipeline="gps")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Topic and folder of this run
import json
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from topiclake_examples.tutorials import TutorialRun

topic = f"{settings.pipeline.topic}-tutorial-{settings.run_id[:8]}"
folder = f"{settings.storage.mount_point}/tutorials/{topic}"
kafka = {"kafka.bootstrap.servers": settings.kafka.bootstrap_servers}
run = TutorialRun(settings, topic, folder, dbutils.secrets.get)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. The schema
# MAGIC The article's vehicles send their positions as Avro. This is its schema, to the letter. Timestamp and device are numbers.

# COMMAND ----------

# DBTITLE 1,The article's schema
gps_schema = """
{
  "type": "record",
  "name": "Gps",
  "namespace": "com.michelin.telematic",
  "fields": [
    {"name": "timestamp", "type": "long"},
    {"name": "deviceId", "type": "long"},
    {"name": "latitude", "type": "double"},
    {"name": "longitude", "type": "double"},
    {"name": "altitude", "type": "double"},
    {"name": "speed", "type": "double"}
  ]
}
"""
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
schema_id = registry.register(f"{topic}-value", gps_schema)
print(f"schema id {schema_id} of subject {topic}-value")

# COMMAND ----------

# DBTITLE 1,The article's columns and ours
from topiclake_examples.gps.tracks import GPS_SCHEMA

def columns_of(schema):
    """Return names and types of the columns that Spark makes of an Avro schema."""
    return spark.range(0).select(from_avro(F.lit(None).cast("binary"), schema).alias("gps")).select("gps.*").dtypes

columns = map(lambda article, ours: (*article, ours[1]), columns_of(gps_schema), columns_of(json.dumps(GPS_SCHEMA)))
display(spark.createDataFrame(list(columns), "column STRING, article STRING, topiclake STRING"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. The producer
# MAGIC The positions are recorded tracks. A serializer of Confluent puts five bytes before each value: a zero, and the schema id as
# MAGIC four bytes. Spark can do it, too.

# COMMAND ----------

# DBTITLE 1,Recorded positions
from topiclake_examples.gps import recorded_positions

positions = recorded_positions(spark, "../../data/gps_tracks.csv")
published = positions.count()
display(positions)

# COMMAND ----------

# DBTITLE 1,Positions to Kafka
def publish(rows, schema, schema_id):
    """Send rows as Confluent-framed Avro, keyed by device."""
    prefix = F.lit(b"\0" + schema_id.to_bytes(4, "big"))
    payload = to_avro(F.struct(*rows.columns), schema)
    records = rows.select(F.col("deviceId").cast("string").alias("key"), F.concat(prefix, payload).alias("value"))
    records.write.format("kafka").options(**kafka, topic=topic).save()

tl.ensure_topic(settings.kafka, topic, 4)
publish(positions, gps_schema, schema_id)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The stream of records
# MAGIC Spark's Kafka source has seven columns:
# MAGIC
# MAGIC | column | type | meaning |
# MAGIC |---|---|---|
# MAGIC | `key` | BINARY | decides the partition; here the device as text |
# MAGIC | `value` | BINARY | the position, as bytes |
# MAGIC | `topic` | STRING | the topic |
# MAGIC | `partition` | INT | the partition |
# MAGIC | `offset` | BIGINT | the place in the partition; topic, partition and offset identify a record |
# MAGIC | `timestamp` | TIMESTAMP | when the record was made or stored, not when the vehicle was at the position |
# MAGIC | `timestampType` | INT | 0: set by the producer, 1: set by the broker |

# COMMAND ----------

# DBTITLE 1,The seven columns
raw = spark.read.format("kafka").options(**kafka, subscribe=topic).load()
assert raw.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
display(raw.limit(10))

# COMMAND ----------

# MAGIC %md
# MAGIC The article starts its stream at `latest`. That is where a **new checkpoint** begins. A later start continues at the checkpoint.

# COMMAND ----------

# DBTITLE 1,Plain Spark: latest and earliest
def stream(starting_offsets):
    """Read the topic as a stream, as the article does."""
    options = kafka | {"subscribe": topic, "startingOffsets": starting_offsets}
    return spark.readStream.format("kafka").options(**options).load()

def drained(starting_offsets):
    """Return how many records a new stream reads until it has caught up."""
    query = stream(starting_offsets).writeStream.format("memory").queryName(f"from_{starting_offsets}")
    query.trigger(availableNow=True).start().awaitTermination()
    return spark.table(f"from_{starting_offsets}").count()

starts = [("latest", drained("latest")), ("earliest", drained("earliest"))]
display(spark.createDataFrame(starts, "startingOffsets STRING, records BIGINT"))

# COMMAND ----------

# DBTITLE 1,Wrong: no history at latest
assert dict(starts) == {"latest": 0, "earliest": published}

# COMMAND ----------

# MAGIC %md
# MAGIC `starting_offsets` of a pipeline is `earliest` by default. `plan_ingest` shows what a start would read, and changes nothing.

# COMMAND ----------

# DBTITLE 1,Topiclake: a plan
plan = tl.plan_ingest(spark, run.settings("positions"))
display(plan.summary(spark))
assert plan.records == published

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Five bytes before the value
# MAGIC Byte 0 is the magic byte. Bytes 1 to 4 are the schema id. Avro begins at byte 5, which is position 6 for Spark's `substring`.

# COMMAND ----------

# DBTITLE 1,The five bytes
five_bytes = raw.selectExpr(
    "hex(substring(value, 1, 1)) AS magic_byte",
    "hex(substring(value, 2, 4)) AS schema_id_bytes",
    "CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT) AS schema_id",
    "hex(substring(value, 6)) AS payload",
)
assert five_bytes.select("magic_byte", "schema_id").distinct().collect() == [("00", schema_id)]
display(five_bytes.limit(10))

# COMMAND ----------

# DBTITLE 1,Wrong: five bytes too many
with_prefix = raw.select(from_avro("value", gps_schema, {"mode": "FAILFAST"}).alias("gps")).select("gps.*")
display(with_prefix.limit(5))
# Not one record fails, also in the strict mode, and each of them is wrong.
assert with_prefix.where("timestamp = 0 AND deviceId = 0").count() == published

# COMMAND ----------

# DBTITLE 1,Plain Spark: the article's decoding
def decoded(records, mode):
    """Decode records by one schema, as the article does."""
    value = F.expr("substring(value, 6)")
    return records.select("key", from_avro(value, gps_schema, {"mode": mode}).alias("gps")).select("key", "gps.*")

right = decoded(raw, "PERMISSIVE")
assert right.drop("key").exceptAll(positions).count() == positions.exceptAll(right.drop("key")).count() == 0
display(right.limit(10))

# COMMAND ----------

# DBTITLE 1,The decoded stream, live
display(decoded(stream("earliest"), "PERMISSIVE"), streamName="live_positions", processingTime="1 second")

# COMMAND ----------

# DBTITLE 1,The end of the live stream
(live,) = filter(lambda query: query.name == "live_positions", spark.streams.active)
tl.await_caught_up(live, "1 second")
live.stop()

# COMMAND ----------

# DBTITLE 1,Topiclake: records by their own schemas
values = tl.read_values(spark, run.settings("positions"))
tl.await_caught_up(tl.start_memory(values, "positions_now", output_mode="append"), "availableNow")
assert spark.table("positions_now").count() == published

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT deviceId, count(*) AS positions, round(max(speed), 1) AS fastest FROM positions_now GROUP BY deviceId ORDER BY deviceId

# COMMAND ----------

# MAGIC %md
# MAGIC The schema has no unit for `timestamp`. Spark casts a number to a time by seconds, and these are milliseconds.

# COMMAND ----------

# DBTITLE 1,Wrong: milliseconds as seconds
years = spark.table("positions_now").where("timestamp > 0").selectExpr("year(CAST(timestamp AS TIMESTAMP)) AS year")
display(years.distinct())
assert years.where("year < 10000").count() == 0

# COMMAND ----------

# MAGIC %md
# MAGIC Our schema says `timestamp-millis`, so its column is a TIMESTAMP. For the article's schema a **transform** of the ingest does it.

# COMMAND ----------

# DBTITLE 1,Topiclake: a transform
def with_times(rows):
    """Make a time of the timestamp in milliseconds."""
    return rows.withColumn("timestamp", F.timestamp_millis("timestamp"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. The stream into a Delta table
# MAGIC The article's table is `/mnt/datalake/gps`, and its checkpoint `/mnt/datalake/gps/_checkpoints/kafka`. Delta ignores folders
# MAGIC whose name begins with `_`, so VACUUM keeps the checkpoint. Deleting the table's folder deletes the checkpoint, too.

# COMMAND ----------

# DBTITLE 1,Plain Spark: Kafka → Delta
def start_article(checkpoint, table):
    """Start the article's stream, which ends when it has caught up."""
    rows = decoded(stream("earliest"), "PERMISSIVE").drop("key").writeStream.format("delta").outputMode("append")
    rows = rows.option("checkpointLocation", run.located(checkpoint)).trigger(availableNow=True)
    return rows.start(run.located(table))

def rows_of(table):
    """Return the number of rows in a table."""
    return spark.read.format("delta").load(run.located(table)).count()

def run_article():
    """Run the article's stream until it has caught up; return the number of rows in the table."""
    start_article("gps/_checkpoints/kafka", "gps").awaitTermination()
    return rows_of("gps")

# The second run continues at the checkpoint, and finds nothing new.
assert (run_article(), run_article()) == (published, published)
display(dbutils.fs.ls(run.located("gps/_checkpoints/kafka")))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. Bad records
# MAGIC Five records that are no positions: a tombstone, a cut value, a value with bytes after it, text, and an unknown schema id.

# COMMAND ----------

# DBTITLE 1,Five bad records
value = bytes(raw.first()["value"])
bad = [
    ("tombstone", None),
    ("cut", value[:20]),
    ("trailing bytes", value + b"junk"),
    ("text", b'{"deviceId": 1001, "latitude": 46.43, "longitude": 13.74}'),
    ("unknown schema id", b"\0" + (987_654).to_bytes(4, "big") + value[5:]),
]
bad_records = spark.createDataFrame(bad, "key STRING, value BINARY")
bad_records.withColumn("partition", F.lit(0)).write.format("kafka").options(**kafka, topic=topic).save()

# COMMAND ----------

# DBTITLE 1,Plain Spark: PERMISSIVE and FAILFAST
def outcome(kind, mode):
    """Return what the article's decoding makes of a bad record."""
    try:
        row = decoded(bad_records.where(F.col("key") == kind), mode).first()
    except Exception:  # noqa: BLE001 (Spark's class differs between platforms)
        return "an error"
    return "a row of nulls" if row["deviceId"] is None else f"device {row['deviceId']}, latitude {row['latitude']}"

def compared(record):
    """Return what both modes make of a bad record."""
    return record[0], outcome(record[0], "PERMISSIVE"), outcome(record[0], "FAILFAST")

outcomes = list(map(compared, bad))
display(spark.createDataFrame(outcomes, "record STRING, PERMISSIVE STRING, FAILFAST STRING"))

# COMMAND ----------

# DBTITLE 1,Wrong: three positions in either mode
permissive = dict(map(lambda row: row[:2], outcomes))
failfast = dict(map(lambda row: row[::2], outcomes))
assert permissive["tombstone"] == permissive["cut"] == failfast["tombstone"] == "a row of nulls"
assert failfast["cut"] == "an error"
assert permissive["trailing bytes"] == failfast["trailing bytes"] == permissive["unknown schema id"]
assert permissive["text"] == failfast["text"]
assert permissive["text"].startswith("device -50, ")

# COMMAND ----------

# DBTITLE 1,Wrong: five rows too many
assert run_article() == published + 5
article = spark.read.format("delta").load(run.located("gps"))
assert article.where("deviceId IS NULL").count() == 2
display(article.where("deviceId IS NULL OR deviceId < 0"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 7. A new version of the schema
# MAGIC Version 2 has a `heading` before `speed`. The registry accepts it, since the field has a default. A new device sends it.

# COMMAND ----------

# DBTITLE 1,Version 2
version_2 = json.loads(gps_schema)
version_2["fields"].insert(5, {"name": "heading", "type": "double", "default": 0.0})
version_2 = json.dumps(version_2)
id_2 = registry.register(f"{topic}-value", version_2)
headings = positions.where("deviceId = 1003").withColumns(
    {"deviceId": F.lit(2001).cast("bigint"), "heading": F.expr("CAST(pmod(timestamp, 360) AS DOUBLE)")}
)
headings = headings.select("timestamp", "deviceId", "latitude", "longitude", "altitude", "heading", "speed")
publish(headings, version_2, id_2)
newer = headings.count()

# COMMAND ----------

# DBTITLE 1,Wrong: headings as speeds
assert run_article() == published + 5 + newer
wrong = spark.read.format("delta").load(run.located("gps")).where("deviceId = 2001")
assert wrong.where("speed = pmod(timestamp, 360)").count() == newer
displayHTML(tl.draw_table(wrong.select(F.timestamp_millis("timestamp").alias("time"), "speed")))

# COMMAND ----------

# DBTITLE 1,Topiclake: Kafka → decode → Delta
ingest = run.settings("positions")
query = tl.start_ingest(spark, ingest, transform=with_times)
tl.await_caught_up(query, ingest.pipeline.trigger)
summary = tl.summarize(spark, ingest, query)
display(summary.counts(spark))

# COMMAND ----------

# DBTITLE 1,Topiclake: rows, quarantine and audit
assert summary.rows_written == published + newer
assert summary.quarantined == {"bad_magic": 1, "tombstone": 1, "undecodable": 2, "unknown_schema_id": 1}
gps = tl.create_view(spark, ingest)
# Version 2 has a default for the positions of version 1.
sent = positions.withColumn("heading", F.lit(0.0)).unionByName(headings)
sent = with_times(sent).select(gps.columns)
assert sent.exceptAll(gps).count() == gps.exceptAll(sent).count() == 0
audit = tl.audit_ingest(spark, ingest)
print(audit)
audit.require_ok()

# COMMAND ----------

# DBTITLE 1,The quarantine
display(tl.quarantine_rows(spark, ingest))

# COMMAND ----------

# DBTITLE 1,Topiclake: the record that FAILFAST names
from topiclake.errors import DecodeError

strict = run.settings("strict", mode="FAILFAST")
try:
    tl.await_caught_up(tl.start_ingest(spark, strict), strict.pipeline.trigger)
    refusal = ""
except DecodeError as error:
    refusal = str(error)
print(refusal)
assert f"topic {topic}, partition 0, offset " in refusal
assert tl.create_view(spark, strict, name="strict").count() == 0

# COMMAND ----------

# DBTITLE 1,The tracks
from topiclake_examples.gps import track_map

displayHTML(track_map(gps.where("timestamp > '1970-01-01'").withColumn("deviceId", F.col("deviceId").cast("string"))))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 8. Batch and stream into one table
# MAGIC A Delta table accepts rows of a batch and rows of a stream. A batch that runs twice is in the table twice.

# COMMAND ----------

# DBTITLE 1,Plain Spark: batch, then stream
def append(table, options):
    """Append the recorded positions to a table; return its number of rows."""
    positions.write.format("delta").mode("append").options(**options).save(run.located(table))
    return rows_of(table)

batch_rows, stream_rows = append("both", {}), raw.count()
start_article("checkpoints/both", "both").awaitTermination()
assert (batch_rows, rows_of("both")) == (published, published + stream_rows)

# COMMAND ----------

# DBTITLE 1,Wrong: positions of batch and stream
# The stream knows nothing of the batch: each recorded position is in the table twice.
twice = spark.read.format("delta").load(run.located("both")).groupBy("deviceId", "timestamp").count()
assert twice.where("deviceId BETWEEN 0 AND 2000 AND count < 2").count() == 0

# COMMAND ----------

# DBTITLE 1,Wrong: a repeated batch
assert (append("batch", {}), append("batch", {})) == (published, 2 * published)

# COMMAND ----------

# MAGIC %md
# MAGIC Delta skips a batch whose `txnAppId` and `txnVersion` the table has. The library names each of its batches in this way. Its batch
# MAGIC and its stream are one query: `availableNow` drains the topic and ends, an interval runs all the time, with the same checkpoint.

# COMMAND ----------

# DBTITLE 1,A named batch, once
named = {"txnAppId": topic, "txnVersion": "1"}
assert (append("once", named), append("once", named)) == (published, published)

# COMMAND ----------

# DBTITLE 1,Topiclake: batch, then stream
publish(headings.withColumn("deviceId", F.lit(2002).cast("bigint")), version_2, id_2)
streamed = run.settings("positions", trigger="1 second")
running = tl.start_ingest(spark, streamed, transform=with_times)
tl.await_caught_up(running, streamed.pipeline.trigger)
rows = tl.create_view(spark, streamed).count()
running.stop()
assert rows == published + 2 * newer

# COMMAND ----------

# DBTITLE 1,The same table as a stream
counts = spark.readStream.format("delta").load(tl.table_path(ingest)).groupBy("deviceId").count()
tl.await_caught_up(tl.start_memory(counts, "counts_now", output_mode="complete"), "availableNow")
assert spark.table("counts_now").groupBy().sum("count").first()[0] == rows
display(spark.table("counts_now").orderBy("deviceId"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 9. Several instances of the stream
# MAGIC Two streams may write into one table at the same time, each with its own checkpoint. Each of them reads the whole topic.

# COMMAND ----------

# DBTITLE 1,Wrong: each record twice
held = raw.count()
assert held == published + 5 + 2 * newer
spark.createDataFrame([], decoded(raw, "PERMISSIVE").drop("key").schema).write.format("delta").save(run.located("instances"))
instance_1 = start_article("checkpoints/instance_1", "instances")
instance_2 = start_article("checkpoints/instance_2", "instances")
assert instance_1.awaitTermination(300)
assert instance_2.awaitTermination(300)
assert rows_of("instances") == 2 * held

# COMMAND ----------

# MAGIC %md
# MAGIC `assign` divides the partitions of a topic among the instances. In one session each query needs its own name.

# COMMAND ----------

# DBTITLE 1,Topiclake: partitions of each instance
def instance(name, partitions):
    """Start an ingest of some partitions into the table of all instances."""
    keys = {"assign": json.dumps({topic: partitions}), "checkpoint_path": f"{folder}/checkpoints/{name}"}
    return tl.start_ingest(spark, run.settings("shared", **keys).model_copy(update={"name": name}))

first_half, second_half = instance("gps_1", [0, 1]), instance("gps_2", [2, 3])
tl.await_caught_up(first_half, "availableNow")
tl.await_caught_up(second_half, "availableNow")
shared = spark.read.format("delta").load(run.located("shared"))
assert shared.count() == shared.select("_kafka").distinct().count() == published + 2 * newer
display(shared.groupBy("_kafka.partition").count().orderBy("partition"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 10. Update, delete and merge
# MAGIC A Delta table is no append-only log. One receiver has a broken clock, whose positions are of 1901. They are deleted. Small
# MAGIC speeds become 0. A merge corrects the last altitude of each device, and adds a position of a further device.

# COMMAND ----------

# DBTITLE 1,The table in the catalog
before = tl.table_history(spark, ingest).selectExpr("max(version)").first()[0]
spark.sql("DROP TABLE IF EXISTS gps_tutorial")
spark.sql(f"CREATE TABLE gps_tutorial USING DELTA LOCATION '{tl.table_path(ingest)}'")
last = gps.groupBy("deviceId").agg(F.max("timestamp").alias("timestamp")).withColumn("altitude", F.lit(500.0))
further = spark.sql("SELECT 9001L AS deviceId, TIMESTAMP'2026-01-02 03:04:05' AS timestamp, 321.0D AS altitude")
last.unionByName(further).createOrReplaceTempView("corrections")

# COMMAND ----------

# MAGIC %sql
# MAGIC UPDATE gps_tutorial SET speed = 0 WHERE speed < 0.5

# COMMAND ----------

# MAGIC %sql
# MAGIC DELETE FROM gps_tutorial WHERE timestamp < '1970-01-01'

# COMMAND ----------

# MAGIC %sql
# MAGIC MERGE INTO gps_tutorial AS gps USING corrections ON gps.deviceId = corrections.deviceId AND gps.timestamp = corrections.timestamp
# MAGIC WHEN MATCHED THEN UPDATE SET altitude = corrections.altitude
# MAGIC WHEN NOT MATCHED THEN INSERT (deviceId, timestamp, altitude) VALUES (corrections.deviceId, corrections.timestamp, corrections.altitude)

# COMMAND ----------

# MAGIC %sql
# MAGIC DESCRIBE HISTORY gps_tutorial

# COMMAND ----------

# DBTITLE 1,Time travel
changed = spark.table("gps_tutorial")
earlier = spark.sql(f"SELECT * FROM gps_tutorial VERSION AS OF {before}")
deleted = earlier.where("timestamp < '1970-01-01'").count()
assert deleted > 0
assert changed.where("timestamp < '1970-01-01' OR speed > 0 AND speed < 0.5").count() == 0
assert changed.where("deviceId = 9001 AND altitude = 321").count() == 1
assert earlier.count() == rows
display(earlier.groupBy("deviceId").count().orderBy("deviceId"))

# COMMAND ----------

# MAGIC %md
# MAGIC The table is not what Kafka holds any more, and the audit names each difference. `RESTORE` returns to the earlier version.

# COMMAND ----------

# DBTITLE 1,Topiclake: the audit's differences
by_hand = tl.audit_ingest(spark, ingest)
print(by_hand)
differences = by_hand.summary(spark).selectExpr("sum(missing)", "sum(unknown)").first()
assert not by_hand.ok
assert tuple(differences) == (deleted, 1)

# COMMAND ----------

# DBTITLE 1,The restored table
spark.sql(f"RESTORE TABLE gps_tutorial TO VERSION AS OF {before}")
assert tl.create_view(spark, ingest).count() == rows
display(tl.table_history(spark, ingest))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 11. The last position of each device
# MAGIC A map of the fleet needs one row for each device. The usual code merges each batch by its key, and selects any position of a device.

# COMMAND ----------

# DBTITLE 1,Plain Spark: a MERGE by device
tracks = gps.drop("_kafka").where("timestamp > '1970-01-01'")
tracks.limit(0).write.format("delta").save(run.located("merged"))
tracks.dropDuplicates(["deviceId"]).createOrReplaceTempView("batch")
spark.sql(
    f"MERGE INTO delta.`{run.located('merged')}` AS last USING batch ON last.deviceId = batch.deviceId "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)

# COMMAND ----------

# DBTITLE 1,Wrong: positions of hours ago
newest = tracks.groupBy("deviceId").agg(F.max("timestamp").alias("newest"))
merged = spark.read.format("delta").load(run.located("merged")).join(newest, "deviceId")
assert merged.where("timestamp < newest").count() > 0
display(merged.select("deviceId", "timestamp", "newest").orderBy("deviceId"))

# COMMAND ----------

# MAGIC %md
# MAGIC `apply_changes` follows the table of positions as a stream. It selects the newest position by `sequence_by`, within the batch and
# MAGIC in the table, in whatever order positions arrive. A device that was returned sends a negative speed. That deletes its row.

# COMMAND ----------

# DBTITLE 1,Topiclake: the newest position
def apply_positions():
    """Apply new positions to the table of the last positions; return its view."""
    changes = spark.readStream.format("delta").load(tl.table_path(ingest)).where("timestamp > '1970-01-01'")
    rules = {"keys": ["deviceId"], "sequence_by": "timestamp", "apply_as_deletes": "speed < 0"}
    paths = {"path": f"{folder}/last", "checkpoint_path": f"{folder}/checkpoints/last"}
    tl.await_caught_up(tl.apply_changes(changes, ingest, **paths, **rules), "availableNow")
    return tl.changes_view(spark, ingest, path=f"{folder}/last", name="last_positions")

assert apply_positions().join(newest, "deviceId").where("timestamp = newest").count() == newest.count()
display(spark.table("last_positions").orderBy("deviceId"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 12. A device's right to be forgotten
# MAGIC Device 3003 sends positions, and one cut value. It is returned. Then its owner wants to be forgotten. The table of the last
# MAGIC positions has a Change Data Feed, so that other tables can follow it.

# COMMAND ----------

# DBTITLE 1,A device that is returned
def send(rows):
    """Publish positions of device 3003, and carry them into both tables; return its row of the view."""
    publish(rows.withColumn("deviceId", F.lit(3003).cast("bigint")), version_2, id_2)
    tl.await_caught_up(tl.start_ingest(spark, ingest, transform=with_times), "availableNow")
    return apply_positions().where("deviceId = 3003").count()

spark.sql(f"ALTER TABLE delta.`{run.located('last')}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
cut = spark.createDataFrame([("3003", value[:20])], "key STRING, value BINARY")
cut.write.format("kafka").options(**kafka, topic=topic).save()
assert send(headings) == 1
is_last = headings.orderBy(F.desc("timestamp")).limit(1)
assert send(is_last.withColumns({"timestamp": F.expr("timestamp + 1000"), "speed": F.lit(-1.0)})) == 0

# COMMAND ----------

# MAGIC %md
# MAGIC A deletion nulls all columns but the keys, and the row stays. Without it, an older position that arrives late would bring the
# MAGIC device back. Each reader but the view sees that row. Old files, the Change Data Feed and the quarantine have more.

# COMMAND ----------

# DBTITLE 1,Wrong: still on the disk
def on_disk(table, condition="deviceId = 3003"):
    """Return how many rows of device 3003 are in a table's files, also in files of earlier versions."""
    files = f"{run.located(table)}/{{part-,_change_data/cdc-}}*.parquet"
    return spark.read.schema("deviceId BIGINT, key BINARY, value BINARY").parquet(files).where(condition).count()

of_key = "CAST(key AS STRING) = '3003'"
row = spark.read.format("delta").load(run.located("last")).where("deviceId = 3003").first()
assert (row["latitude"], row["_cdc"]["deleted"]) == (None, True)
left = [on_disk("positions"), on_disk("last"), on_disk("positions_quarantine", of_key)]
print("rows in files:", left)
assert left[0] == newer + 1
assert left[1] > 1
assert left[2] == 1

# COMMAND ----------

# MAGIC %md
# MAGIC `purge_changes` removes deletions, by default those of 30 days ago. It also writes files again, since a MERGE has only marked the
# MAGIC rows that it replaced. `VACUUM` deletes files of earlier versions. It keeps those of the last seven days, unless the check of
# MAGIC Delta is off. After that, no time travel leads before the deletion.

# COMMAND ----------

# DBTITLE 1,Delete, purge and VACUUM
tables = list(map(lambda name: f"delta.`{run.located(name)}`", ["positions", "positions_quarantine", "last"]))
spark.sql(f"DELETE FROM {tables[0]} WHERE deviceId = 3003")
spark.sql(f"DELETE FROM {tables[1]} WHERE {of_key}")
assert tl.purge_changes(spark, ingest, path=f"{folder}/last", retention_days=0) == 1
spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
vacuumed = list(map(lambda table: spark.sql(f"VACUUM {table} RETAIN 0 HOURS").count(), tables))
spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")

# COMMAND ----------

# DBTITLE 1,No file has the device
assert [on_disk("positions"), on_disk("last"), on_disk("positions_quarantine", of_key)] == [0, 0, 0]
assert tl.create_view(spark, ingest).count() == rows
assert spark.table("last_positions").count() == newest.count()

# COMMAND ----------

# MAGIC %md
# MAGIC Two places still have it. Kafka has the records until its retention deletes them, and a start with `resume=restart` would read
# MAGIC them again. The log of a table has the least and greatest values of each file, until `delta.logRetentionDuration` is over.

# COMMAND ----------

# DBTITLE 1,The end
spark.sql("DROP TABLE gps_tutorial")
figures = {"records": held, "rows": rows, "quarantined": 5, "article_rows": held, "deleted": deleted, "forgotten": sum(left)}
dbutils.notebook.exit(json.dumps(figures))
