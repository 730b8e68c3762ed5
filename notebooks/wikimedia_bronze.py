# Databricks notebook source
# MAGIC %md
# MAGIC # Wikimedia's changes into a table: bronze
# MAGIC
# MAGIC Each change that the topic holds becomes a row of a Delta table, as it came and exactly once; what is no change goes to
# MAGIC the quarantine beside it. `wikimedia_silver` goes on from there.
# MAGIC
# MAGIC **Run it** cell by cell, or as the first table of the job `wikimedia_medallion`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds`, and the stream goes on | from conf |
# MAGIC | `storage` | where tables live: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the table of changes; the quarantine is this with `_quarantine` behind | from conf |
# MAGIC | `checkpoint_path` | where the stream keeps its place | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "trigger", "storage", "table_path", "checkpoint_path",
                                pipeline="wikimedia")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Kafka → decode → Delta
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,Changes by their type
tl.create_view(spark, settings)
display(
    spark.sql("SELECT type, count(*) AS changes FROM wikimedia_edits GROUP BY type ORDER BY changes DESC")
)

# COMMAND ----------

# DBTITLE 1,Is each record that Kafka holds in exactly one place?
audit = tl.audit_ingest(spark, settings)
print(audit)
audit.require_ok()

# COMMAND ----------

dbutils.notebook.exit(tl.summarize(spark, settings, query).to_json())
