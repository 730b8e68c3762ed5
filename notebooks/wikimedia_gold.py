# Databricks notebook source
# MAGIC %md
# MAGIC # Edits of bots and of people, in windows: gold
# MAGIC
# MAGIC Streams the table of `wikimedia_silver`, counts in windows of 60 seconds every 30 seconds, and writes closed windows into
# MAGIC a table. They are the same windows that `wikimedia_edits` counts from Kafka.
# MAGIC
# MAGIC **Run it** cell by cell, or as the last table of the job `wikimedia_medallion`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for a stream that does not end | from conf |
# MAGIC | `storage` | where tables are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the table of changes; the table of windows has the suffix `_gold` | from conf |
# MAGIC | `checkpoint_path` | where the state of the stream is: `_gold` is appended | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import wikimedia

settings = tl.notebook_settings(dbutils, "topic", "trigger", "storage", "table_path", "checkpoint_path",
                                pipeline="wikimedia")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Edits as a stream, oldest first
silver = f"{settings.pipeline.location}_silver"
edits = tl.read_table_stream(spark, settings, path=silver, withEventTimeOrder="true")

# COMMAND ----------

# DBTITLE 1,Closed windows into a table
tl.set_state(spark, settings)
path, place = f"{settings.pipeline.location}_gold", f"{settings.pipeline.checkpoint_path}_gold"
sinks = {"gold": tl.delta_batches(settings, spark, path=path)}
query = tl.start_sinks(
    wikimedia.edits_per_window(edits), settings, sinks, checkpoint_path=place, name="gold"
)
tl.await_caught_up(query, settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,The windows
gold = tl.create_view(spark, settings, path=path, name="wikimedia_gold")
display(spark.sql("SELECT * FROM wikimedia_gold ORDER BY start, requested_by"))

# COMMAND ----------

import json

dbutils.notebook.exit(json.dumps({"windows": gold.count()}))
