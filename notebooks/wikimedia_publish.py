# Databricks notebook source
# MAGIC %md
# MAGIC # Edits of Wikipedia to a Kafka topic
# MAGIC
# MAGIC Sends Wikimedia's `recentchange` events as Confluent-framed Avro, keyed by wiki and page. The events are the 100 of
# MAGIC `data/wikimedia_recentchange.ndjson`, more that are made from them, or live ones. Registers the schema, and creates the
# MAGIC topic if it is missing.
# MAGIC
# MAGIC **Run it** as the job `wikimedia_publish`. On a laptop, a million events:
# MAGIC `python -m workbench run notebooks/wikimedia_publish.py -p events=1000000`. At their original speed, beginning now:
# MAGIC `-p speed=1 -p times=now`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `topic` | Kafka topic; empty: from conf |
# MAGIC | `source` | `recorded`, or `live` from [EventStreams](https://stream.wikimedia.org) |
# MAGIC | `events` | the number of events; of recorded events, 0 is all 100, and further events are made from them |
# MAGIC | `speed` | of recorded events: 1 is the original speed, 10 is ten times as fast, 0 is no limit |
# MAGIC | `times` | of recorded events: `recorded`, or `now` to begin now |
# MAGIC | `seed` | the same seed makes the same events |
# MAGIC | `user_agent` | of `live`: name and address of the caller, which Wikimedia requires |
# MAGIC | `after` | of `live`: `last_event_id` of an earlier run; this run continues after it |

# COMMAND ----------

# DBTITLE 1,Settings
import topiclake as tl
from topiclake_examples import wikimedia

settings = tl.notebook_settings(dbutils, "topic", pipeline="wikimedia", source=["recorded", "live"],
                                events="0", speed="0", times=["recorded", "now"], seed="1", user_agent="",
                                after="")

# COMMAND ----------

# DBTITLE 1,Published events
if dbutils.widgets.get("source") == "live":
    published = wikimedia.publish_live_edits(
        settings,
        user_agent=dbutils.widgets.get("user_agent"),
        events=dbutils.widgets.get("events"),
        after=dbutils.widgets.get("after"),
    )
else:
    published = wikimedia.publish_recorded_edits(
        settings,
        "../data/wikimedia_recentchange.ndjson",
        events=dbutils.widgets.get("events"),
        speed=dbutils.widgets.get("speed"),
        times=dbutils.widgets.get("times"),
        seed=dbutils.widgets.get("seed"),
    )
print(f"{published.records} events, acknowledged by the broker; {published.refused} rejected")

# COMMAND ----------

dbutils.notebook.exit(published.to_json())
