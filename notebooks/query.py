# Databricks notebook source
# MAGIC %md
# MAGIC # Questions to the table of a pipeline
# MAGIC
# MAGIC Makes the pipeline's table a temp view and shows the result of a query. Writes nothing.
# MAGIC
# MAGIC **Run it** after an ingest; on a laptop with `python -m workbench show <pipeline>`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | `conf/pipelines/<pipeline>.yaml`; its key `view` names the view | |
# MAGIC | `sql` | a query of the view | all columns |
# MAGIC | `limit` | the number of rows that are shown | |
# MAGIC | `topic`, `storage`, `table_path` | those of the ingest | from conf |

# COMMAND ----------

# DBTITLE 1,Parameters
dbutils.widgets.combobox("env", "from conf", ["from conf", "local", "local-azure", "local-s3", "azure", "s3", "kubernetes"])
dbutils.widgets.text("pipeline", "gps")
dbutils.widgets.text("sql", "")
dbutils.widgets.text("limit", "20")
dbutils.widgets.text("topic", "")
dbutils.widgets.text("storage", "")
dbutils.widgets.text("table_path", "")

# COMMAND ----------

# DBTITLE 1,Configuration and the view
import topiclake as tl

parameters = {
    "env": dbutils.widgets.get("env"),
    "topic": dbutils.widgets.get("topic"),
    "storage": dbutils.widgets.get("storage"),
    "table_path": dbutils.widgets.get("table_path"),
}
settings = tl.load_settings(dbutils.widgets.get("pipeline"), parameters, secrets=dbutils.secrets.get)
tl.mount(dbutils, settings.storage, spark)
table = tl.create_view(spark, settings)

# COMMAND ----------

# DBTITLE 1,Result of the query
sql = dbutils.widgets.get("sql") or f"SELECT * FROM {settings.pipeline.view}"
rows = spark.sql(sql).limit(int(dbutils.widgets.get("limit")))
display(rows)

# COMMAND ----------

import json
from pyspark.sql import functions as F

as_json = F.to_json(F.collect_list(F.struct("*")), {"ignoreNullFields": "false"})
shown = json.loads(rows.agg(as_json.alias("rows")).first()["rows"])
dbutils.notebook.exit(json.dumps({"table": tl.table_path(settings), "records": table.count(), "rows": shown}))
