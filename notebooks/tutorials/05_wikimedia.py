# Databricks notebook source
# MAGIC %md
# MAGIC # Tutorial 5: edits of Wikipedia, Avro in and Avro out
# MAGIC
# MAGIC This tutorial follows an article that reads Wikimedia's changes as Confluent-framed Avro. It counts the edits of bots and
# MAGIC of people in windows, and sends the counts back to Kafka. Each step is plain Spark first, as in the article. Then a cell
# MAGIC computes what goes wrong there. Then a call of the library replaces it.
# MAGIC
# MAGIC **Run it** with `python -m workbench run notebooks/tutorials/05_wikimedia.py`. Each run has its own topic and its own folder,
# MAGIC so a second run does no harm. The plain cells know no login of a broker, so this notebook is for the embedded services.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | begin of the topic's name; empty: from conf |
# MAGIC | `storage` | where tables and checkpoints are stored; empty: from conf |
# MAGIC | `events` | the number of events; those after the 100 recorded events are made like them |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", pipeline="wikimedia", events="600")
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
changes = run.settings("changes")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. The registration
# MAGIC A producer registers its schema under the subject `<topic>-value`, and gets an id. The registry has a REST API.

# COMMAND ----------

# DBTITLE 1,The schema by REST
import urllib.request
from topiclake_examples.wikimedia.events import RECENT_CHANGE

def post(path, body):
    """Send JSON to the schema registry, and return its answer."""
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{settings.schema_registry.url}{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=30))

schema = json.dumps(RECENT_CHANGE)
schema_id = post(f"/subjects/{topic}-value/versions", {"schema": schema})["id"]
print(f"schema id {schema_id} of subject {topic}-value")

# COMMAND ----------

# MAGIC %md
# MAGIC An event of Wikimedia has a field `$schema`. That is no name of Avro, and the registry refuses it. Here it is `schema`.

# COMMAND ----------

# DBTITLE 1,Wrong: a name outside of Avro
dollar = schema.replace('"name": "schema"', '"name": "$schema"', 1)
try:
    refusal = f"accepted as id {post(f'/subjects/{topic}-dollar/versions', {'schema': dollar})['id']}"
except urllib.error.HTTPError as error:
    refusal = f"{error.code}: {json.load(error)['message']}"
print(refusal)
assert refusal.startswith("422: ")

# COMMAND ----------

# DBTITLE 1,Topiclake: one schema, one id
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
assert registry.register(f"{topic}-value", schema) == schema_id
print(registry.latest(f"{topic}-value"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. One partition
# MAGIC The article's topic has one partition. So the order of the topic is the order of the events. The producer is a program with
# MAGIC Confluent's client.

# COMMAND ----------

# DBTITLE 1,Events to Kafka
from topiclake_examples import wikimedia

tl.ensure_topic(settings.kafka, topic, 1)
recorded = "../../data/wikimedia_recentchange.ndjson"
published = wikimedia.publish_recorded_edits(changes, recorded, events=dbutils.widgets.get("events"))
sent = published.records
assert published.schema_id == schema_id
print(published)

# COMMAND ----------

# DBTITLE 1,The records
raw = spark.read.format("kafka").options(**kafka, subscribe=topic).load()
assert raw.selectExpr("max(offset) + 1").first()[0] == raw.count() == sent
display(raw.limit(10))

# COMMAND ----------

# DBTITLE 1,Wrong: one task
def tasks(records):
    """Return how many tasks read the records."""
    return records.select(F.spark_partition_id()).distinct().count()

assert tasks(raw) == 1

# COMMAND ----------

# DBTITLE 1,Topiclake: more tasks than partitions
divided = tl.read_batch(spark, run.settings("divided", min_partitions="4"))
assert tasks(divided) > 1
assert divided.count() == sent

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Magic byte, schema id and payload
# MAGIC A value begins with a zero, the magic byte. The next four bytes are the schema id. The payload begins at byte 6.

# COMMAND ----------

# DBTITLE 1,Plain Spark: columns on the console
import contextlib
import io

stream = spark.readStream.format("kafka").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
parts = stream.selectExpr(
    "substring(value, 1, 1) AS magicByte",
    "substring(value, 2, 4) AS valueSchemaId",
    "substring(value, 6, length(value) - 5) AS fixedValue",
)
with contextlib.redirect_stdout(io.StringIO()) as printed:
    console = parts.writeStream.format("console").trigger(availableNow=True).start()
    console.awaitTermination()
assert console.lastProgress.numInputRows == sent

# COMMAND ----------

# DBTITLE 1,Wrong: nothing in the cell
assert printed.getvalue() == ""

# COMMAND ----------

# DBTITLE 1,Topiclake: the console in the cell
three = tl.read_records(spark, changes).select(F.hex("magicByte"), "valueSchemaId", F.hex("fixedValue"))
tl.await_caught_up(tl.start_console(three, "three_columns", most_rows=5), "availableNow")

# COMMAND ----------

# DBTITLE 1,The values
values = raw.selectExpr(
    "hex(substring(value, 1, 1)) AS magic_byte",
    "CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT) AS schema_id",
    "hex(substring(value, 6)) AS payload",
)
assert values.select("magic_byte", "schema_id").distinct().collect() == [("00", schema_id)]
display(values.limit(10))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. The console consumer
# MAGIC Both commands print records as JSON, and know the same properties. Ours reads addresses and logins from `conf/`. It is a
# MAGIC command of the workbench, so nothing is printed on Databricks.
# MAGIC
# MAGIC | Confluent's | ours |
# MAGIC |---|---|
# MAGIC | `kafka-avro-console-consumer` | `python -m workbench consume --avro` |
# MAGIC | `--bootstrap-server … --topic wikimedia` | `wikimedia` |
# MAGIC | `--property schema.registry.url=…` | |
# MAGIC | `--from-beginning --max-messages 3` | `--from-beginning --max-messages 3` |
# MAGIC | `--property print.schema.ids=true` | `--property print.schema.ids=true` |

# COMMAND ----------

# DBTITLE 1,Kafka's console consumer
import subprocess
import sys
from importlib.util import find_spec

def consumed(*options):
    """Return the bytes that our console consumer prints of the first three records."""
    if find_spec("workbench") is None:
        return b""
    command = [sys.executable, "-m", "workbench", "consume", topic, *options, "--from-beginning", "--max-messages", "3"]
    return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout

printed = consumed()
print(printed[:200].decode(errors="replace"))

# COMMAND ----------

# DBTITLE 1,Wrong: bytes as text
# The magic byte, and the schema id as four bytes.
assert not printed or printed.startswith(b"\0" + schema_id.to_bytes(4, "big"))

# COMMAND ----------

# DBTITLE 1,Topiclake: records as JSON
events = list(map(json.loads, consumed("--avro").splitlines()))
print(json.dumps(events[:1], indent=2)[:1500])
first = tl.decode_values(tl.read_batch(spark, changes), changes).orderBy("_kafka.offset").first()
assert not events or events[0]["title"]["string"] == first["title"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. From bytes to columns
# MAGIC The article decodes with the schema that the registry calls the latest one.

# COMMAND ----------

# DBTITLE 1,Plain Spark: the article's decoding
def decoded(records):
    """Decode records by the latest schema, as the article does."""
    # A client remembers the versions of a subject for 15 seconds, so this one is new.
    latest = tl.SchemaRegistry.from_settings(settings.schema_registry).latest(f"{topic}-value").schema
    value = F.expr("substring(value, 6, length(value) - 5)")
    return records.select(from_avro(value, latest, {"mode": "PERMISSIVE"}).alias("change")).select("change.*")

decoded(raw).printSchema()
assert decoded(raw).where("wiki IS NOT NULL").count() == sent
display(decoded(raw).select("wiki", "title", "user", "bot", "timestamp", "length").limit(10))

# COMMAND ----------

# MAGIC %md
# MAGIC The article asks whether `bot` is true, and calls each other record human. Two records are bad: one has no value, one is cut.

# COMMAND ----------

# DBTITLE 1,Two bad records
value = bytes(raw.first()["value"])
bad_records = spark.createDataFrame([("tombstone", None), ("cut", value[:60])], "key STRING, value BINARY")
bad_records.write.format("kafka").options(**kafka, topic=topic).save()

# COMMAND ----------

# DBTITLE 1,Wrong: bad records as humans
def requested_by(rows):
    """Count changes by who asked for them, as the article does."""
    who = F.when(F.col("bot"), "Bot").otherwise("Human")
    return dict(rows.groupBy(who.alias("requested_by")).count().collect())

article = requested_by(decoded(raw))
print(article)
assert sum(article.values()) == sent + 2

# COMMAND ----------

# DBTITLE 1,Topiclake: table and quarantine
query = tl.start_ingest(spark, changes)
tl.await_caught_up(query, changes.pipeline.trigger)
summary = tl.summarize(spark, changes, query)
assert (summary.rows_written, summary.quarantined) == (sent, {"tombstone": 1, "undecodable": 1})
table = tl.create_view(spark, changes)
humans = requested_by(table)["Human"]
assert article["Human"] == humans + 2
display(tl.quarantine_rows(spark, changes))

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT CASE WHEN bot THEN 'Bot' WHEN NOT bot THEN 'Human' END AS requested_by, count(*) AS edits FROM wikimedia_edits GROUP BY 1

# COMMAND ----------

# DBTITLE 1,Edits of bots and of people
displayHTML(tl.draw_table(wikimedia.wikimedia_edits(table).select("requested_by")))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. A new version of the schema
# MAGIC Version 2 says whether a change was reverted. A stream that starts now knows version 2 alone.

# COMMAND ----------

# DBTITLE 1,Version 2
version_2 = json.loads(schema)
version_2["fields"].append({"name": "reverted", "type": ["null", "boolean"], "default": None})
newer = table.orderBy("id").limit(20).withColumn("reverted", F.lit(True))
proposal = tl.propose_schemas(newer, changes, topic=topic, schema=version_2)
print("refusals of the registry:", proposal.refusals)
tl.write_avro(newer, changes, proposal, write_id="version 2")

# COMMAND ----------

# DBTITLE 1,Wrong: nulls for all history
nulls = decoded(raw).where("wiki IS NULL").count()
assert nulls == sent + 2
assert decoded(raw).where("reverted").count() == 20

# COMMAND ----------

# DBTITLE 1,Topiclake: records by their own versions
query = tl.start_ingest(spark, changes)
tl.await_caught_up(query, changes.pipeline.trigger)
table = tl.create_view(spark, changes)
assert table.where("wiki IS NOT NULL").count() == table.count() == sent + 20
assert table.where("reverted").count() == 20
tl.audit_ingest(spark, changes).require_ok()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 7. Windows, back to Kafka
# MAGIC Edits are counted in windows of 60 seconds every 30 seconds. A window is sent when the watermark has passed its end. The
# MAGIC article sends what `to_avro` makes.

# COMMAND ----------

# DBTITLE 1,Plain Spark: windows into a topic
tl.set_state(spark, changes)
tl.ensure_topic(settings.kafka, f"{topic}.article", 1)
edits = wikimedia.wikimedia_edits(tl.read_values(spark, changes))
per_window = wikimedia.edits_per_window(edits)
counts = wikimedia.edit_counts(per_window)
checkpoint = run.located("_checkpoints/processed")
writer = counts.select(to_avro(F.struct(*counts.columns)).alias("value")).writeStream.format("kafka")
writer = writer.options(**kafka, topic=f"{topic}.article", checkpointLocation=checkpoint).outputMode("append")
writer.trigger(availableNow=True).start().awaitTermination()
plain = spark.read.format("kafka").options(**kafka, subscribe=f"{topic}.article").load()
windows = plain.count()
display(plain.selectExpr("hex(value) AS value").limit(10))

# COMMAND ----------

# DBTITLE 1,Wrong: records without a schema id
# A consumer takes the first five bytes of Avro for the magic byte and a schema id. The registry knows no such id.
wrong_ids = plain.selectExpr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS BIGINT)")
assert windows > 0
assert registry.by_id(wrong_ids.first()[0]) is None

# COMMAND ----------

# DBTITLE 1,Topiclake: closed windows with their schema
processed = f"{topic}.processed"
to_kafka = tl.start_avro_writer(
    counts, changes, topic=processed, timestamps="string", checkpoint_path=f"{folder}/checkpoints/processed"
)
tl.await_caught_up(to_kafka, changes.pipeline.trigger)
back = run.settings("processed", topic=processed)
read_back = tl.decode_values(tl.drop_duplicates(tl.read_batch(spark, back)), back)
assert read_back.count() == windows
display(read_back.orderBy("window.start", "requested_by"))

# COMMAND ----------

# DBTITLE 1,Edits per window
displayHTML(tl.draw_table(read_back.select(F.to_timestamp("window.start").alias("start"), "counts")))

# COMMAND ----------

# DBTITLE 1,Edits per window, live
display(per_window, streamName="edits_per_window", processingTime="1 second")

# COMMAND ----------

# DBTITLE 1,The end of the live stream
(live,) = filter(lambda query: query.name == "edits_per_window", spark.streams.active)
tl.await_caught_up(live, "1 second")
live.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 8. The checkpoint
# MAGIC
# MAGIC | what | holds |
# MAGIC |---|---|
# MAGIC | `metadata` | the id of the query |
# MAGIC | `sources` | the offsets at which the query began |
# MAGIC | `offsets` | for each micro-batch, the end of its offsets, the watermark, and the settings of its state. It is written before the batch |
# MAGIC | `commits` | for each micro-batch, a file that is written after it |
# MAGIC | `state` | the windows that are still open |

# COMMAND ----------

# DBTITLE 1,The files of the checkpoint
display(dbutils.fs.ls(checkpoint))

# COMMAND ----------

# DBTITLE 1,Offsets and commits
metadata = json.loads(dbutils.fs.head(f"{checkpoint}/metadata"))
begin = dbutils.fs.head(f"{checkpoint}/sources/0/0")
version, watermark, offsets = dbutils.fs.head(f"{checkpoint}/offsets/0").splitlines()
commit = dbutils.fs.head(f"{checkpoint}/commits/0")
print(metadata, begin, version, watermark, offsets, commit, sep="\n")
assert json.loads(offsets) == {topic: {"0": sent + 22}}
assert begin.endswith(json.dumps({topic: {"0": 0}}, separators=(",", ":")))

# COMMAND ----------

# MAGIC %md
# MAGIC The checkpoint is all that a stream knows of what it has done. Without it, plain Spark begins again.

# COMMAND ----------

# DBTITLE 1,Wrong: a doubled table
def run_article():
    """Run the article's stream into a table until it has caught up; return the number of rows."""
    rows = decoded(stream).writeStream.format("delta").option("checkpointLocation", run.located("_checkpoints/article"))
    rows.trigger(availableNow=True).start(run.located("article")).awaitTermination()
    return spark.read.format("delta").load(run.located("article")).count()

rows_before = run_article()
dbutils.fs.rm(run.located("_checkpoints/article"), True)
assert (rows_before, run_article()) == (sent + 22, 2 * (sent + 22))

# COMMAND ----------

# DBTITLE 1,Topiclake: a refused start
from topiclake.errors import IngestError

dbutils.fs.rm(run.located("checkpoints/changes"), True)
try:
    tl.start_ingest(spark, changes)
    refusal = ""
except IngestError as error:
    refusal = str(error)
print(refusal)
assert refusal

# COMMAND ----------

# DBTITLE 1,Topiclake: resume at the table's end
resumed = run.settings("changes", resume="table")
tl.await_caught_up(tl.start_ingest(spark, resumed), resumed.pipeline.trigger)
assert tl.create_view(spark, resumed).count() == sent + 20
audit = tl.audit_ingest(spark, resumed)
print(audit)
audit.require_ok()

# COMMAND ----------

# DBTITLE 1,The end
figures = {"events": sent, "rows": sent + 20, "windows": windows, "article_humans": article["Human"], "humans": humans}
dbutils.notebook.exit(json.dumps(figures))
