# Databricks notebook source
# MAGIC %md
# MAGIC # Did every record arrive exactly once?
# MAGIC
# MAGIC Compares the records that Kafka still holds with the rows of the table and of its quarantine, for each partition.
# MAGIC No record may be missing, in a place twice, or in both places, and no row without its record in Kafka. The range is
# MAGIC from the start of the checkpoint to its last committed batch. The stream may be running. Writes nothing.
# MAGIC
# MAGIC **Run it** after an ingest, or as a separate job. On a laptop, use `python -m workbench audit`, which exits with 1
# MAGIC if something is wrong. `docs/audit.md` explains each column.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | the pipeline of the ingest, as in conf | |
# MAGIC | `topic`, `table_path`, `checkpoint_path`, `storage` | those of the ingest | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it | from conf |
# MAGIC | `on_wrong` | `fail`: a record that is missing or double fails the job; `report`: the notebook only reports it | |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", "table_path", "checkpoint_path",
                                pipeline=["gps"], on_wrong=["fail", "report"])
tl.mount(dbutils, settings.storage, spark)
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,Kafka compared with table and quarantine
report = tl.audit_ingest(spark, settings)
print(report)

# COMMAND ----------

# DBTITLE 1,Each partition
display(report.summary(spark))

# COMMAND ----------

# DBTITLE 1,Failure for missing or double records
if dbutils.widgets.get("on_wrong") == "fail":
    report.require_ok()

# COMMAND ----------

dbutils.notebook.exit(report.to_json())
