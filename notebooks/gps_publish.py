# Databricks notebook source
# MAGIC %md
# MAGIC # Real GPS tracks to a Kafka topic
# MAGIC
# MAGIC Plays the recorded tracks of `data/gps_tracks.csv` as if trackers moved along them now. Registers the schema, and
# MAGIC creates the topic if it is missing. Sends each point as Confluent-framed Avro, keyed by device.
# MAGIC
# MAGIC **Run it** before `gps_ingest`, as the demo does. On a laptop:
# MAGIC `python -m workbench run notebooks/gps_publish.py -p devices=10 -p records_per_second=200`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | Kafka topic; empty: from conf |
# MAGIC | `devices` | number of trackers; three tracks are recorded, and further trackers repeat them |
# MAGIC | `times` | `now`: the tracks end now; `recorded`: the times of the file; those of one receiver are of 1901 |
# MAGIC | `records_per_second` | of all trackers together; 0: no limit |

# COMMAND ----------

# DBTITLE 1,Settings
import topiclake as tl
from topiclake_examples import gps

settings = tl.notebook_settings(dbutils, "topic", pipeline="gps", devices="3", times=["now", "recorded"],
                                records_per_second="0")

# COMMAND ----------

# DBTITLE 1,Published tracks
published = gps.publish_tracks(
    settings,
    "../data/gps_tracks.csv",
    devices=dbutils.widgets.get("devices"),
    records_per_second=dbutils.widgets.get("records_per_second"),
    times=dbutils.widgets.get("times"),
)
print(f"{published.records} records of {published.devices} devices, acknowledged by the broker")

# COMMAND ----------

# DBTITLE 1,Values for later tasks
dbutils.jobs.taskValues.set(key="topic", value=settings.pipeline.topic)

# COMMAND ----------

dbutils.notebook.exit(published.to_json())
