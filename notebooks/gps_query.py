# Databricks notebook source
# MAGIC %md
# MAGIC # Questions to the GPS table
# MAGIC
# MAGIC Reads the table of `gps_ingest`: counts per device, last positions, the table's history, and the table as it was
# MAGIC at an earlier version. Writes nothing.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `storage`, `table_path` | as in `gps_ingest`; empty: from conf |
# MAGIC | `version` | version of the table to compare with |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples.gps import counts_per_device, last_positions

settings = tl.notebook_settings(dbutils, "storage", "table_path", pipeline="gps", version="0")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Records per device
gps = tl.create_view(spark, settings)
display(counts_per_device(gps))

# COMMAND ----------

# DBTITLE 1,Last position of each device
display(last_positions(gps))

# COMMAND ----------

# DBTITLE 1,The table's history
display(tl.table_history(spark, settings))

# COMMAND ----------

# DBTITLE 1,An earlier version of the table
gps_then = f"{tl.table_identifier(settings)} VERSION AS OF {int(dbutils.widgets.get('version'))}"
then = spark.sql(f"SELECT count(*) AS records FROM {gps_then}")
display(then)

# COMMAND ----------

dbutils.notebook.exit(str(then.first()["records"]))
