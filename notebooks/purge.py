# Databricks notebook source
# MAGIC %md
# MAGIC # Old deletions out of a table of changes
# MAGIC
# MAGIC A pipeline with `apply: upsert` keeps a row for each deletion, so that an older change does not bring the row back.
# MAGIC This notebook removes such rows after a time, and writes their files again. The earlier files remain until `VACUUM`.
# MAGIC
# MAGIC **Run it** as a job from time to time, on a laptop with `python -m workbench purge <pipeline>`. Replay the quarantine
# MAGIC before: a record that waits there and is older than a purged deletion would bring its row back.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | a pipeline with `apply: upsert` | |
# MAGIC | `retention_days` | the time that the table keeps a deletion, in days | `changes.retention_days` of the pipeline, else 30 |
# MAGIC | `topic`, `storage`, `table_path` | those of the ingest | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", "table_path", pipeline=["shop"], retention_days="")
tl.mount(dbutils, settings.storage, spark)
days = dbutils.widgets.get("retention_days")

# COMMAND ----------

# DBTITLE 1,Purge
removed = tl.purge_changes(spark, settings, retention_days=float(days) if days else None)
display(tl.table_history(spark, settings).limit(5))

# COMMAND ----------

import json

dbutils.notebook.exit(json.dumps({"table": tl.table_path(settings), "removed": removed}))
