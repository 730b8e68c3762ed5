# Databricks notebook source
# MAGIC %md
# MAGIC # Edits with their time and author: silver
# MAGIC
# MAGIC Streams the edits of the table of `wikimedia_bronze` into another table. Separate columns have the time of an edit, and
# MAGIC whether a bot or a person made it. The notebook `wikimedia_gold` counts the edits.
# MAGIC
# MAGIC **Run it** cell by cell, or as the second table of the job `wikimedia_medallion`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for a stream that does not end | from conf |
# MAGIC | `storage` | where tables are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the table of changes; the table of edits has the suffix `_silver` | from conf |
# MAGIC | `checkpoint_path` | where the state of the stream is: `_silver` is appended | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import wikimedia

settings = tl.notebook_settings(dbutils, "topic", "trigger", "storage", "table_path", "checkpoint_path",
                                pipeline="wikimedia")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Edits into a table
path, place = f"{settings.pipeline.location}_silver", f"{settings.pipeline.checkpoint_path}_silver"
sinks = {"silver": tl.delta_batches(settings, spark, path=path)}
columns = ["wiki", "title", "user", "time", "requested_by", "length", "comment"]
query = tl.start_restarted(
    lambda: tl.start_sinks(
        wikimedia.wikimedia_edits(tl.read_table_stream(spark, settings)).select(columns),
        settings,
        sinks,
        checkpoint_path=place,
        name="silver",
    )
)
query.await_caught_up(settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,Edits by author
silver = tl.create_view(spark, settings, path=path, name="wikimedia_silver")
display(spark.sql("SELECT requested_by, count(*) AS edits FROM wikimedia_silver GROUP BY requested_by"))

# COMMAND ----------

import json

dbutils.notebook.exit(json.dumps({"edits": silver.count()}))
