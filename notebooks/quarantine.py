# Databricks notebook source
# MAGIC %md
# MAGIC # Records in quarantine: list, show, replay
# MAGIC
# MAGIC Shows which records of a topic are in the quarantine table, and why. With `action=replay` it decodes them again
# MAGIC with the current schemas, and appends the records that decode now to the table, each exactly once.
# MAGIC
# MAGIC **Run it** after a schema was registered or a table was fixed. On a laptop, use
# MAGIC `python -m workbench quarantine list`, `show` or `replay`. A second run, also after a crash, doubles nothing.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `action` | `list` and `show` change nothing; `replay` puts the records that decode now into the table |
# MAGIC | `reason` | only records with this reason are shown and replayed, such as `unknown_schema_id`; empty: all |
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `pipeline` | the pipeline of the ingest, as in conf |
# MAGIC | `topic`, `storage`, `table_path` | those of the ingest; empty: from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", "table_path", pipeline=["gps"],
                                action=["list", "show", "replay"], reason="")
tl.mount(dbutils, settings.storage, spark)
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,Replay
reason, replayed = dbutils.widgets.get("reason"), None
if dbutils.widgets.get("action") == "replay":
    replayed = tl.replay_quarantine(spark, settings, [reason] if reason else [])
    print(replayed)

# COMMAND ----------

# DBTITLE 1,Reasons of rejected records
display(tl.quarantine_reasons(spark, settings))

# COMMAND ----------

# DBTITLE 1,First 20 records
display(tl.quarantine_rows(spark, settings, reason).limit(20))

# COMMAND ----------

dbutils.notebook.exit(tl.quarantine_summary(spark, settings, reason, replayed))
