# Databricks notebook source
# MAGIC %md
# MAGIC # What would the next ingest do?
# MAGIC
# MAGIC Shows which offsets the next run of an ingest would read, how a sample of them decodes, how the table would change,
# MAGIC and which versions of the schema would go to quarantine. It changes nothing.
# MAGIC
# MAGIC **Run it** before the first ingest of a topic, or before a change of the configuration; on a laptop with
# MAGIC `python -m workbench plan <pipeline>`, which exits with 2 if the ingest would do something.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | the pipeline of the ingest, as in conf | |
# MAGIC | `topic`, `starting_offsets`, `table_path`, `checkpoint_path`, `storage` | those of the ingest | from conf |

# COMMAND ----------

# DBTITLE 1,Parameters
dbutils.widgets.combobox("env", "from conf", ["from conf", "local", "local-azure", "local-s3", "azure", "s3", "kubernetes"])
dbutils.widgets.text("pipeline", "gps")
dbutils.widgets.text("topic", "")
dbutils.widgets.text("starting_offsets", "")
dbutils.widgets.text("storage", "")
dbutils.widgets.text("table_path", "")
dbutils.widgets.text("checkpoint_path", "")

# COMMAND ----------

# DBTITLE 1,Configuration and storage
import topiclake as tl

parameters = {
    "env": dbutils.widgets.get("env"),
    "topic": dbutils.widgets.get("topic"),
    "starting_offsets": dbutils.widgets.get("starting_offsets"),
    "storage": dbutils.widgets.get("storage"),
    "table_path": dbutils.widgets.get("table_path"),
    "checkpoint_path": dbutils.widgets.get("checkpoint_path"),
}
settings = tl.load_settings(dbutils.widgets.get("pipeline"), parameters, secrets=dbutils.secrets.get)
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,The plan
plan = tl.plan_ingest(spark, settings)
print(plan.to_json(indent=2))

# COMMAND ----------

dbutils.notebook.exit(plan.to_json())
