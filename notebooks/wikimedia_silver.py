# Databricks notebook source
# MAGIC %md
# MAGIC # Edits, each with its time and who asked for it: silver
# MAGIC
# MAGIC Streams the table of `wikimedia_bronze` into another one that holds edits only, with columns of their own for when an
# MAGIC edit was made and whether a bot or a person made it. `wikimedia_gold` counts them.
# MAGIC
# MAGIC **Run it** cell by cell, or as the second table of the job `wikimedia_medallion`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds`, and the stream goes on | from conf |
# MAGIC | `storage` | where tables live: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the table of changes; edits go to this with `_silver` behind | from conf |
# MAGIC | `checkpoint_path` | where the stream keeps its place, with `_silver` behind | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import wikimedia

settings = tl.notebook_settings(dbutils, "topic", "trigger", "storage", "table_path", "checkpoint_path",
                                pipeline="wikimedia")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Edits into a table, each once; new columns of the changes start this again by itself
bronze = tl.table_path(settings)
path, place = f"{settings.pipeline.table_path}_silver", f"{settings.pipeline.checkpoint_path}_silver"
sinks = {"silver": tl.delta_batches(settings, spark, path=path)}
columns = ["wiki", "title", "user", "time", "requested_by", "length", "comment"]
query = tl.start_restarted(
    lambda: tl.start_sinks(
        wikimedia.wikimedia_edits(spark.readStream.format("delta").load(bronze)).select(columns),
        settings,
        sinks,
        checkpoint_path=place,
        name="silver",
    )
)
query.await_caught_up(settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,Who edited
silver = tl.create_view(spark, settings, path=path, name="wikimedia_silver")
display(spark.sql("SELECT requested_by, count(*) AS edits FROM wikimedia_silver GROUP BY requested_by"))

# COMMAND ----------

import json

dbutils.notebook.exit(json.dumps({"edits": silver.count()}))
