# Databricks notebook source
# MAGIC %md
# MAGIC # A topic of your own into a Delta table
# MAGIC
# MAGIC Reads the topic of a pipeline, decodes each record as the pipeline says, and appends it to the pipeline's Delta table.
# MAGIC Records that do not decode go to a quarantine table. At its end it proves that each record is in exactly one place.
# MAGIC
# MAGIC **Run it** cell by cell, as a job (`trigger=availableNow` ends when the topic is drained), or on a laptop with
# MAGIC `python -m workbench ingest <pipeline>`. Running it again reads only what is new.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `pipeline` | `conf/pipelines/<pipeline>.yaml` | |
# MAGIC | `topic` | Kafka topic; the schema is that of subject `<topic>-value` | from conf |
# MAGIC | `starting_offsets` | `latest`, `earliest`, a time or `{"<topic>": {"0": 23, "1": -2}}`; counts on the first run only | from conf |
# MAGIC | `mode` | `PERMISSIVE`: quarantine bad records; `FAILFAST`: stop at the first | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for a stream that does not end | from conf |
# MAGIC | `storage` | where tables and checkpoints are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path`, `checkpoint_path` | where the table and the state of the stream are | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it, such as `tombstones=skip` | from conf |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "starting_offsets", "mode", "trigger", "storage",
                                "table_path", "checkpoint_path", pipeline=["gps"])
tl.mount(dbutils, settings.storage, spark)
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,Stream from Kafka to Delta
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,The table as a view
table = tl.create_view(spark, settings)
display(table.limit(100))

# COMMAND ----------

# DBTITLE 1,Picture of the table
displayHTML(tl.draw_table(table))

# COMMAND ----------

# DBTITLE 1,Rows and rejected records
summary = tl.summarize(spark, settings, query)
display(summary.counts(spark))

# COMMAND ----------

# DBTITLE 1,Each record in exactly one place
audit = tl.audit_ingest(spark, settings) if settings.pipeline.kafka_column else None
print(audit or "kafka_column is false: nothing can be audited")
if audit:
    audit.require_ok()

# COMMAND ----------

import json
from dataclasses import asdict

dbutils.notebook.exit(json.dumps(asdict(summary) | {"audit": audit and asdict(audit)}))
