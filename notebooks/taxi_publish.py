# Databricks notebook source
# MAGIC %md
# MAGIC # New York taxi trips to a Kafka topic
# MAGIC
# MAGIC Reads yellow taxi trips from the city's CSV files, and checks each line. Registers the schema, and creates the topic
# MAGIC with 10 partitions if it is missing. Sends each trip as Avro, keyed by pickup zone.
# MAGIC
# MAGIC **Run it** before `taxi_archive`. On a laptop, with five million trips made of the 10,000 real ones:
# MAGIC `python -m workbench run notebooks/taxi_publish.py -p trips=5000000`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | Kafka topic; empty: from conf |
# MAGIC | `avro_form` | `confluent`: the schema's id in front of each value; `plain`: Avro alone, as in the article |
# MAGIC | `columns` | `17`: the article's schema; `18`: with `congestion_surcharge`, the next version |
# MAGIC | `source` | CSV files: a path from this notebook, below a mount, or a URI such as `s3a://<bucket>/<folder>`. The environment variable `INPUT_PATH` is its default, if it is set |
# MAGIC | `trips` | the number of trips to make from those in the files; empty: only those |
# MAGIC | `seed` | for `trips`: the same seed makes the same trips |

# COMMAND ----------

# DBTITLE 1,Settings and storage
import os
import topiclake as tl
source = os.environ.get("INPUT_PATH", "../data/yellow_tripdata_2019-01_sample.csv")
settings = tl.notebook_settings(dbutils, "topic", pipeline="taxi", avro_form=["confluent", "plain"], columns=["17", "18"], source=source, trips="", seed="1")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,Published trips
from topiclake_examples import taxi

published = taxi.publish_trips(
    spark,
    settings,
    dbutils.widgets.get("source"),
    columns=dbutils.widgets.get("columns"),
    trips=dbutils.widgets.get("trips"),
    seed=dbutils.widgets.get("seed"),
)
print(f"{published.records} trips of {published.columns} columns, acknowledged by the broker")

# COMMAND ----------

# DBTITLE 1,Values for later tasks
dbutils.jobs.taskValues.set(key="topic", value=settings.pipeline.topic)

# COMMAND ----------

dbutils.notebook.exit(published.to_json())
