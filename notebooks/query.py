# Databricks notebook source
# MAGIC %md
# MAGIC # Questions to the table of a pipeline
# MAGIC
# MAGIC Makes the pipeline's table a temp view and shows the result of a query. Writes nothing.
# MAGIC
# MAGIC **Run it** after an ingest, on a laptop with `python -m workbench show <pipeline>`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | `conf/pipelines/<pipeline>.yaml`; its key `view` names the view | |
# MAGIC | `sql` | a query of the view | all columns |
# MAGIC | `limit` | the number of rows that are shown | |
# MAGIC | `topic`, `storage`, `table_path` | those of the ingest | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it | from conf |

# COMMAND ----------

# DBTITLE 1,Settings, storage and the view
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "storage", "table_path", pipeline=["gps"], sql="", limit="20")
tl.mount(dbutils, settings.storage, spark)
display(tl.settings_table(spark, settings))
table = tl.create_view(spark, settings)

# COMMAND ----------

# DBTITLE 1,Result of the query
sql = dbutils.widgets.get("sql") or f"SELECT * FROM {settings.pipeline.view}"
rows = spark.sql(sql).limit(int(dbutils.widgets.get("limit")))
display(rows)

# COMMAND ----------

import json

rows.createOrReplaceTempView("shown")
as_json = "SELECT to_json(collect_list(struct(*)), map('ignoreNullFields', 'false')) AS rows FROM shown"
shown = json.loads(spark.sql(as_json).first()["rows"])
dbutils.notebook.exit(json.dumps({"table": tl.table_path(settings), "records": table.count(), "rows": shown}))
