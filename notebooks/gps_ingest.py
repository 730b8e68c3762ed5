# Databricks notebook source
# MAGIC %md
# MAGIC # GPS events from Kafka into a Delta table
# MAGIC
# MAGIC Reads Confluent-framed Avro from a Kafka topic and decodes each record by its own writer schema. Appends the rows
# MAGIC to a Delta table on mounted blob storage. Records that do not decode go to a quarantine table.
# MAGIC
# MAGIC **Run it** cell by cell, as a job (`trigger=availableNow` ends when the topic is drained), or on a laptop with
# MAGIC `python -m workbench run notebooks/gps_ingest.py`. Running it again reads only what is new.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic; the schema is that of subject `<topic>-value` | from conf |
# MAGIC | `starting_offsets` | `latest`, `earliest` or `{"<topic>": {"0": 23, "1": -2}}`; counts on the first run only | from conf |
# MAGIC | `mode` | `PERMISSIVE`: quarantine bad records; `FAILFAST`: stop at the first | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for a stream that does not end | from conf |
# MAGIC | `storage` | where tables and checkpoints are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | where the Delta table is | from conf |
# MAGIC | `checkpoint_path` | where the state of the stream is; one for each table | from conf |

# COMMAND ----------

# DBTITLE 1,1. Settings
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "starting_offsets", "mode", "trigger", "storage",
                                "table_path", "checkpoint_path", pipeline="gps")
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,2. Schema of the topic's values
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
schemas = registry.latest_of(settings.pipeline.subjects("value", topic=settings.pipeline.topic))
print(*schemas, sep="\n\n")

# COMMAND ----------

# DBTITLE 1,3. Blob storage, mounted
tl.mount(dbutils, settings.storage, spark)
display(dbutils.fs.mounts())

# COMMAND ----------

# DBTITLE 1,4. Stream from Kafka to Delta
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, settings.pipeline.trigger)

# COMMAND ----------

# DBTITLE 1,5. The table as a view
gps = tl.create_view(spark, settings)
display(spark.sql("SELECT * FROM gps LIMIT 100"))

# COMMAND ----------

# DBTITLE 1,The tracks
from topiclake_examples.gps import track_map

displayHTML(track_map(gps))

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
