# Databricks notebook source
# MAGIC %md
# MAGIC # Hits of an internet provider's customers to a Kafka topic
# MAGIC
# MAGIC Makes hits from a seed and sends each as JSON, keyed by zip code. Creates the topic if it is missing.
# MAGIC
# MAGIC **Run it** before `isp_hits`, for example as the job `isp_publish`. On a laptop, with a million hits:
# MAGIC `python -m workbench run notebooks/isp_publish.py -p hits=1000000`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | Kafka topic; empty: from conf |
# MAGIC | `hits` | the number of hits |
# MAGIC | `seed` | the same seed makes the same hits |
# MAGIC | `start` | the earliest hit, in ISO 8601 with its zone |
# MAGIC | `minutes` | the minutes that the hits are spread over |
# MAGIC | `damaged` | the number of hits that are truncated, for the quarantine |

# COMMAND ----------

# DBTITLE 1,Settings
import topiclake as tl
from topiclake_examples import isp

settings = tl.notebook_settings(dbutils, "topic", pipeline="isp", hits="10000", seed="1",
                                start="2026-01-02T03:00:00Z", minutes="60", damaged="0")

# COMMAND ----------

# DBTITLE 1,Published hits
published = isp.publish_hits(
    spark,
    settings,
    hits=dbutils.widgets.get("hits"),
    seed=dbutils.widgets.get("seed"),
    start=dbutils.widgets.get("start"),
    minutes=dbutils.widgets.get("minutes"),
    damaged=dbutils.widgets.get("damaged"),
)
print(f"{published.records} hits, {published.damaged} of them damaged, sent to topic {published.topic}")

# COMMAND ----------

dbutils.notebook.exit(published.to_json())
