# Databricks notebook source
# MAGIC %md
# MAGIC # Logs of Nest devices to a Kafka topic
# MAGIC
# MAGIC Makes logs from a seed and sends each as JSON, keyed by home. A log has the state of a thermostat, a smoke alarm, a
# MAGIC meter and one to three cameras. The locations of the cameras go to a separate topic, as lines of an old system. Creates
# MAGIC both topics if they are missing.
# MAGIC
# MAGIC **Run it** before `nest_cameras`, or as the job `nest_publish`. With a later start, offline cameras are online again, on
# MAGIC a laptop: `python -m workbench run notebooks/nest_publish.py -p start=2026-01-02T06:00:00Z -p offline=0`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | Kafka topic (empty: from conf). Locations go to `<topic>-device-locations` |
# MAGIC | `logs` | the number of logs |
# MAGIC | `homes` | the number of homes that they come from |
# MAGIC | `seed` | the same seed makes the same logs |
# MAGIC | `start` | the earliest log, in ISO 8601 with its zone |
# MAGIC | `minutes` | the minutes that the logs are spread over |
# MAGIC | `offline` | the number of homes in which a camera is offline from the middle of that time |
# MAGIC | `damaged` | the number of logs that are truncated, for the quarantine |

# COMMAND ----------

# DBTITLE 1,Settings
import topiclake as tl
from topiclake_examples import nest

settings = tl.notebook_settings(dbutils, "topic", pipeline="nest", logs="10000", homes="50", seed="1",
                                start="2026-01-02T03:00:00Z", minutes="90", offline="3", damaged="0")

# COMMAND ----------

# DBTITLE 1,Settings of the topic of locations
locations = tl.load_settings(
    "nest_locations",
    {"env": settings.env, "topic": f"{settings.pipeline.topic}-device-locations"},
    secrets=dbutils.secrets.get,
)

# COMMAND ----------

# DBTITLE 1,Published logs and locations
published = nest.publish_nest_logs(
    spark,
    settings,
    locations,
    logs=dbutils.widgets.get("logs"),
    homes=dbutils.widgets.get("homes"),
    seed=dbutils.widgets.get("seed"),
    start=dbutils.widgets.get("start"),
    minutes=dbutils.widgets.get("minutes"),
    offline=dbutils.widgets.get("offline"),
    damaged=dbutils.widgets.get("damaged"),
)
print(f"{published.records} logs, {published.damaged} of them damaged, sent to topic {published.topic}")
print(f"where {published.cameras} cameras are, sent to topic {locations.pipeline.topic}")

# COMMAND ----------

dbutils.notebook.exit(published.to_json())
