# Databricks notebook source
# MAGIC %md
# MAGIC # Edits of Wikipedia: Avro in, windows, Avro out
# MAGIC
# MAGIC Reads Wikimedia's changes from a topic as Confluent-framed Avro. Counts the edits of bots and of people in windows of
# MAGIC 60 seconds every 30 seconds. Sends each closed window to the topic `<topic>.processed`, as Avro with a registered
# MAGIC schema. When the schema of the changes gets a new version, the stream restarts by itself and keeps its windows.
# MAGIC
# MAGIC **Run it** cell by cell, as the job `wikimedia_edits`, or on a laptop, after `wikimedia_publish`, with
# MAGIC `python -m workbench run notebooks/wikimedia_edits.py`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `starting_offsets` | `latest`, `earliest` or `{"<topic>": {"0": 23, "1": -2}}` | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `1 second` for streams that do not end | from conf |
# MAGIC | `storage` | where checkpoints are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | a prefix of the quarantine table: `_quarantine` is appended | from conf |
# MAGIC | `checkpoint_path` | a prefix: `_quarantine` and `_processed` are appended | from conf |
# MAGIC | `live` | `yes`: show the windows, updated with each micro-batch. On Databricks, the display keeps a job running | |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import wikimedia

settings = tl.notebook_settings(dbutils, "topic", "starting_offsets", "trigger", "storage", "table_path",
                                "checkpoint_path", pipeline="wikimedia", live=["no", "yes"])
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,State and trigger
tl.set_state(spark, settings)
trigger = settings.pipeline.trigger

# COMMAND ----------

# DBTITLE 1,Records as bytes
records = tl.read_records(spark, settings)
records.printSchema()

# COMMAND ----------

# DBTITLE 1,The schema in the registry
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
print(registry.latest(f"{settings.pipeline.topic}-value"))

# COMMAND ----------

# DBTITLE 1,Decoded changes
changes = tl.read_values(spark, settings)
changes.printSchema()

# COMMAND ----------

# DBTITLE 1,Rejected records
quarantine_query = tl.start_quarantine(spark, settings)
tl.await_caught_up(quarantine_query, trigger)
display(tl.quarantine_reasons(spark, settings))

# COMMAND ----------

# DBTITLE 1,Live edits of bots and people
per_window = wikimedia.edits_per_window(wikimedia.wikimedia_edits(changes))
if dbutils.widgets.get("live") == "yes":
    display(per_window)

# COMMAND ----------

# DBTITLE 1,Closed windows, printed
closed = tl.start_console(per_window, "closed_windows", trigger=trigger)
tl.await_caught_up(closed, trigger)

# COMMAND ----------

# DBTITLE 1,Proposed schema of the closed windows
processed = f"{settings.pipeline.topic}.processed"
print(tl.propose_schemas(wikimedia.edit_counts(per_window), settings, topic=processed, timestamps="string"))

# COMMAND ----------

# DBTITLE 1,Closed windows to Kafka
def start_counts():
    """Start the stream of closed windows with the schemas that the registry lists now."""
    edits = wikimedia.wikimedia_edits(tl.read_values(spark, settings))
    return tl.start_avro_writer(
        wikimedia.edit_counts(wikimedia.edits_per_window(edits)),
        settings,
        topic=processed,
        timestamps="string",
        checkpoint_path=f"{settings.pipeline.checkpoint_path}_processed",
    )

# COMMAND ----------

# DBTITLE 1,Restart for each new schema version
to_kafka = tl.start_restarted(start_counts)
to_kafka.await_caught_up(trigger)

# COMMAND ----------

# DBTITLE 1,Windows in the topic
back = tl.load_settings(
    "wikimedia", {"env": settings.env, "topic": processed}, secrets=dbutils.secrets.get
)
written = tl.decode_values(tl.drop_duplicates(tl.read_batch(spark, back)), back)
display(written.orderBy("window.start", "requested_by"))

# COMMAND ----------

import json

dbutils.notebook.exit(
    json.dumps({"topic": processed, "records": written.count(), "restarts": to_kafka.restarts})
)
