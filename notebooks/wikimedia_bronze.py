# Databricks notebook source
# MAGIC %md
# MAGIC # Wikimedia's changes into a table: bronze
# MAGIC
# MAGIC Each change of the topic becomes a row of a Delta table, unmodified and exactly once. Records that do not decode go to
# MAGIC the table's quarantine. The notebook `wikimedia_silver` reads the table.
# MAGIC
# MAGIC **Run it** cell by cell, or as the first table of the job `wikimedia_medallion`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with the changes | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for a stream that does not end | from conf |
# MAGIC | `storage` | where tables are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | the table of changes; its quarantine has the suffix `_quarantine` | from conf |
# MAGIC | `checkpoint_path` | where the state of the stream is | from conf |

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

# DBTITLE 1,Each record in exactly one place
audit = tl.audit_ingest(spark, settings)
print(audit)
audit.require_ok()

# COMMAND ----------

dbutils.notebook.exit(tl.summarize(spark, settings, query).to_json())
