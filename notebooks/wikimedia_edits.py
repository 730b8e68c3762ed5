# Databricks notebook source
# MAGIC %md
# MAGIC # Who edits Wikipedia: Avro in, windows, Avro out
# MAGIC
# MAGIC Reads Wikimedia's changes from a topic as Confluent-framed Avro, counts the edits of bots and of people in windows of
# MAGIC 60 seconds every 30 seconds, and sends each window that is closed to the topic `<topic>.processed`, as Avro with a schema
# MAGIC that the registry holds. When the schema of the changes gets a new version, the stream starts again by itself, with its
# MAGIC windows as they were.
# MAGIC
# MAGIC **Run it** cell by cell, or as the job `wikimedia_edits`; on a laptop, after `wikimedia_publish`, with
# MAGIC `python -m workbench run notebooks/wikimedia_edits.py`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `starting_offsets` | `latest`, `earliest` or `{"<topic>": {"0": 23, "1": -2}}` | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `1 second`, and the streams go on | from conf |
# MAGIC | `storage` | where checkpoints live: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the quarantine table is this with `_quarantine` behind | from conf |
# MAGIC | `checkpoint_path` | where streams keep their places, with `_quarantine` and `_processed` behind | from conf |
# MAGIC | `live` | `yes`: the windows, drawn anew with each micro-batch. On Databricks that keeps a job running | |

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

# DBTITLE 1,What Kafka holds: bytes, of which the first five name the schema
records = tl.read_records(spark, settings)
records.printSchema()

# COMMAND ----------

# DBTITLE 1,The schema, as the registry has it
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
print(registry.latest(f"{settings.pipeline.topic}-value"))

# COMMAND ----------

# DBTITLE 1,Changes, each decoded by its own schema
changes = tl.read_values(spark, settings)
changes.printSchema()

# COMMAND ----------

# DBTITLE 1,What is no change, with its reason
left = tl.start_quarantine(spark, settings)
tl.await_caught_up(left, trigger)
display(tl.quarantine_reasons(spark, settings))

# COMMAND ----------

# DBTITLE 1,Edits of bots and of people in windows, while they arrive, for whoever looks at it
per_window = wikimedia.edits_per_window(wikimedia.wikimedia_edits(changes))
if dbutils.widgets.get("live") == "yes":
    display(per_window)

# COMMAND ----------

# DBTITLE 1,Windows as they are closed, printed
closed = tl.start_console(per_window, "closed_windows", trigger=trigger)
tl.await_caught_up(closed, trigger)

# COMMAND ----------

# DBTITLE 1,The schema of what goes back to Kafka, before it is registered
processed = f"{settings.pipeline.topic}.processed"
print(tl.propose_schemas(wikimedia.edit_counts(per_window), settings, topic=processed, timestamps="string"))

# COMMAND ----------

# DBTITLE 1,Closed windows to Kafka
def start_counts():
    """Start the stream of closed windows; its schemas are those that the registry lists now."""
    edits = wikimedia.wikimedia_edits(tl.read_values(spark, settings))
    return tl.start_avro_writer(
        wikimedia.edit_counts(wikimedia.edits_per_window(edits)),
        settings,
        topic=processed,
        timestamps="string",
        checkpoint_path=f"{settings.pipeline.checkpoint_path}_processed",
    )

# COMMAND ----------

# DBTITLE 1,A new version of the changes starts it again by itself
to_kafka = tl.start_restarted(start_counts)
to_kafka.await_caught_up(trigger)

# COMMAND ----------

# DBTITLE 1,What is there now
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
