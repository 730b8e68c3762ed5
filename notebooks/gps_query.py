# Databricks notebook source
# MAGIC %md
# MAGIC # Questions to the GPS table
# MAGIC
# MAGIC Reads what `gps_ingest` wrote: counts per device, last positions, the table's history, and the table as it was
# MAGIC at an earlier version. Writes nothing.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` |
# MAGIC | `storage`, `table_path` | as in `gps_ingest`; empty: from conf |
# MAGIC | `version` | which version to compare with |

# COMMAND ----------

# DBTITLE 1,Parameters
dbutils.widgets.combobox("env", "local", ["local", "local-azure", "local-s3", "azure", "s3", "kubernetes"])
dbutils.widgets.text("storage", "")
dbutils.widgets.text("table_path", "")
dbutils.widgets.text("version", "0")

# COMMAND ----------

# DBTITLE 1,Configuration and the view
import topiclake as tl
from topiclake_examples.gps import counts_per_device, last_positions

parameters = {
    "env": dbutils.widgets.get("env"),
    "storage": dbutils.widgets.get("storage"),
    "table_path": dbutils.widgets.get("table_path"),
}
settings = tl.load_settings("gps", parameters, secrets=dbutils.secrets.get)
tl.mount(dbutils, settings.storage, spark)
gps = tl.create_view(spark, settings)

# COMMAND ----------

# DBTITLE 1,Records per device
display(counts_per_device(gps))

# COMMAND ----------

# DBTITLE 1,Last position of each device
display(last_positions(gps))

# COMMAND ----------

# DBTITLE 1,The table's history
display(tl.table_history(spark, settings))

# COMMAND ----------

# DBTITLE 1,Time travel: the table as it was
version = spark.read.format("delta").option("versionAsOf", dbutils.widgets.get("version"))
then = version.load(tl.table_path(settings)).selectExpr("count(*) AS records")
display(then)

# COMMAND ----------

dbutils.notebook.exit(str(then.first()["records"]))
