# Databricks notebook source
# MAGIC %md
# MAGIC # Hits by zip code, counted while they arrive
# MAGIC
# MAGIC Reads JSON hits from a Kafka topic, and counts them by zip code and in windows. A window has 10 minutes, and one
# MAGIC begins every 5 minutes from 2 minutes past the hour. A value that is not JSON of the schema goes to a quarantine
# MAGIC table with its reason. A hit more than an hour ahead of its arrival is in no window.
# MAGIC
# MAGIC - The hits go into Parquet files, partitioned by zip code and day, with a table over them.
# MAGIC - One query writes changed counts into a Delta table and a topic. Another query sends all counts to a second topic.
# MAGIC - Closed windows go into a Delta table, and hits that are too late for their window into another one.
# MAGIC - Closed windows are also printed.
# MAGIC
# MAGIC `docs/sinks.md` has the guarantees of each sink. To get late hits, publish a second time.
# MAGIC
# MAGIC **Run it** cell by cell, as the job `isp_hits`, or on a laptop, after `isp_publish`, with
# MAGIC `python -m workbench run notebooks/isp_hits.py`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with JSON values | from conf |
# MAGIC | `starting_offsets` | `latest`, `earliest` or `{"<topic>": {"0": 23, "1": -2}}` | from conf |
# MAGIC | `mode` | `PERMISSIVE`: quarantine bad records; `FAILFAST`: stop at the first | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for streams that do not end | from conf |
# MAGIC | `storage` | where tables and checkpoints are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | a prefix: `_quarantine`, `_parquet`, `_per_zip`, `_windows` and `_late` are appended | from conf |
# MAGIC | `checkpoint_path` | a prefix: `_quarantine`, `_files`, `_per_zip`, `_all_zips`, `_windows` and `_database` are appended | from conf |
# MAGIC | `live` | `yes`: show the counts by zip code, updated with each micro-batch. On Databricks, the display keeps a job running | |
# MAGIC
# MAGIC It creates the topics `<topic>-per-zip` and `<topic>-all-zips`.

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import isp

settings = tl.notebook_settings(dbutils, "topic", "starting_offsets", "mode", "trigger", "storage",
                                "table_path", "checkpoint_path", pipeline="isp", live=["no", "yes"])
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,State, trigger and schema
tl.set_state(spark, settings)
trigger = settings.pipeline.trigger
print(settings.pipeline.value_schema)

# COMMAND ----------

# DBTITLE 1,The hits
hits = tl.read_values(spark, settings)
hits.printSchema()

# COMMAND ----------

# DBTITLE 1,Rejected records
quarantine_query = tl.start_quarantine(spark, settings)
tl.await_caught_up(quarantine_query, trigger)
display(tl.quarantine_reasons(spark, settings))

# COMMAND ----------

# DBTITLE 1,Live hits by zip code
if dbutils.widgets.get("live") == "yes":
    display(isp.hits_per_zip(hits))

# COMMAND ----------

# DBTITLE 1,Hits by zip code
per_zip = tl.start_memory(isp.hits_per_zip(hits), "hits_per_zip", trigger=trigger)
tl.await_caught_up(per_zip, trigger)
display(spark.sql("SELECT * FROM hits_per_zip ORDER BY count DESC"))

# COMMAND ----------

# DBTITLE 1,Hits by zip code and window
per_window = tl.start_memory(isp.hits_per_window(hits), "hits_per_window", trigger=trigger)
tl.await_caught_up(per_window, trigger)
display(spark.sql("SELECT * FROM hits_per_window ORDER BY start, zip"))

# COMMAND ----------

# DBTITLE 1,Hits in partitioned Parquet files
# A catalog has tables only, so the files of a table by name are next to its checkpoint.
files_path = f"{settings.pipeline.table_path or settings.pipeline.checkpoint_path}_parquet"
dated = isp.dated_hits(hits)
to_files = tl.start_files(
    dated,
    settings,
    path=files_path,
    checkpoint_path=f"{settings.pipeline.checkpoint_path}_files",
    partition_by=["zip", "day"],
)
tl.await_caught_up(to_files, trigger)

# COMMAND ----------

# DBTITLE 1,A table over the files
tl.create_files_table(spark, settings, path=files_path, name="hits_files", columns=dated.schema)
display(spark.sql("SELECT zip, day, count(*) AS hits FROM hits_files GROUP BY zip, day ORDER BY day, zip"))

# COMMAND ----------

# DBTITLE 1,Partition filters in the plan
spark.sql("SELECT * FROM hits_files WHERE zip = '00501' AND day = DATE'2026-01-02'").explain()

# COMMAND ----------

# DBTITLE 1,Changed counts to table and topic
changed_topic, counts_path = f"{settings.pipeline.topic}-per-zip", f"{settings.pipeline.location}_per_zip"
place = f"{settings.pipeline.checkpoint_path}_per_zip"
tl.ensure_topic(settings.kafka, changed_topic, 4)
sinks = {
    "table": tl.delta_batches(settings, spark, path=counts_path, mode="merge", keys=["zip"]),
    "topic": tl.topic_batches(settings, topic=changed_topic, records=isp.count_records),
}
to_both = tl.start_sinks(
    isp.hits_per_zip(hits), settings, sinks, checkpoint_path=place, output_mode="update"
)
tl.await_caught_up(to_both, trigger)

# COMMAND ----------

# DBTITLE 1,All counts to a topic
whole_topic = f"{settings.pipeline.topic}-all-zips"
tl.ensure_topic(settings.kafka, whole_topic, 4)
to_topic = tl.start_topic_writer(
    isp.count_records(isp.hits_per_zip(hits)),
    settings,
    checkpoint_path=f"{settings.pipeline.checkpoint_path}_all_zips",
    topic=whole_topic,
    output_mode="complete",
)
tl.await_caught_up(to_topic, trigger)

# COMMAND ----------

# DBTITLE 1,Changed counts to a database
if settings.database:
    to_database = tl.start_upsert(
        isp.hits_per_zip(hits).where("zip IS NOT NULL"),
        settings,
        table="hits_per_zip",
        keys=["zip"],
        checkpoint_path=f"{settings.pipeline.checkpoint_path}_database",
    )
    tl.await_caught_up(to_database, trigger)

# COMMAND ----------

# DBTITLE 1,Closed windows and late hits
windows, windows_place = isp.hit_windows(), f"{settings.pipeline.checkpoint_path}_windows"
closed_path, late_path = f"{settings.pipeline.location}_windows", f"{settings.pipeline.location}_late"
window_sinks = {
    "closed": tl.delta_batches(settings, spark, path=closed_path),
    "late": tl.late_batches(settings, spark, windows, path=late_path),
}
to_windows = tl.start_sinks(
    tl.window_counts(hits, windows), settings, window_sinks, checkpoint_path=windows_place
)
tl.await_caught_up(to_windows, trigger)
display(tl.late_counts(spark, settings, path=late_path))

# COMMAND ----------

# DBTITLE 1,Closed windows, printed
closed = tl.start_console(isp.hits_per_window(hits), "closed_windows", trigger=trigger)
tl.await_caught_up(closed, trigger)

# COMMAND ----------

import json

counted = spark.sql(
    "SELECT sum(count) AS hits, (SELECT count(*) FROM hits_per_window) AS windows, "
    "(SELECT count(*) FROM hits_files) AS in_files FROM hits_per_zip"
)
dbutils.notebook.exit(json.dumps(counted.first().asDict()))
