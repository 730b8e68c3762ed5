# Databricks notebook source
# MAGIC %md
# MAGIC # What would the next ingest do?
# MAGIC
# MAGIC Shows which offsets the next run of an ingest would read, and how a sample of them decodes. Shows how the table would
# MAGIC change, and which versions of the schema would go to quarantine. It changes nothing.
# MAGIC
# MAGIC **Run it** before the first ingest of a topic, or before a change of the configuration. On a laptop, use
# MAGIC `python -m workbench plan <pipeline>`, which exits with 2 if the ingest would do something.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | the pipeline of the ingest, as in conf | |
# MAGIC | `topic`, `starting_offsets`, `table_path`, `checkpoint_path`, `storage` | those of the ingest | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "starting_offsets", "storage", "table_path",
                                "checkpoint_path", pipeline=["gps"])
tl.mount(dbutils, settings.storage, spark)
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,Offsets that the ingest would read
plan = tl.plan_ingest(spark, settings)
display(plan.offsets(spark))

# COMMAND ----------

# DBTITLE 1,Sample, schemas and table by topic
display(plan.summary(spark))

# COMMAND ----------

dbutils.notebook.exit(plan.to_json())
