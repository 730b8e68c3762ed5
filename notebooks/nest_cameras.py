# Databricks notebook source
# MAGIC %md
# MAGIC # Nest cameras: sightings and offline devices
# MAGIC
# MAGIC Reads JSON logs of Nest devices from a Kafka topic and selects the cameras. All camera events go into an
# MAGIC archive of Parquet files and into a Delta table. Sightings of persons are counted by zip code and hour. The counts go
# MAGIC to a compacted topic, and the report reads them there. Offline cameras are listed, and each is notified once.
# MAGIC
# MAGIC A log that is not JSON of the schema goes to a quarantine table with its reason. The locations of the cameras are lines
# MAGIC of an old system, which a function reads (`topiclake_examples/nest/locations.py`). `docs/sinks.md` has the guarantees of
# MAGIC each sink.
# MAGIC
# MAGIC **Run it** cell by cell, as the job `nest_cameras`, or on a laptop, after `nest_publish`, with
# MAGIC `python -m workbench run notebooks/nest_cameras.py`.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic with JSON values | from conf |
# MAGIC | `mode` | `PERMISSIVE`: quarantine bad records; `FAILFAST`: stop at the first | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `10 seconds` for streams that do not end | from conf |
# MAGIC | `storage` | where tables and checkpoints are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `table_path` | a prefix: `_locations`, `_parquet`, `_cameras`, `_states`, `_notices` and `_quarantine` are appended | from conf |
# MAGIC | `checkpoint_path` | a prefix: `_locations`, `_archive`, `_cameras` and others are appended | from conf |
# MAGIC | `more_than` | hours with more sightings than this are reported | |
# MAGIC
# MAGIC It also reads the topic `<topic>-device-locations`, and creates `<topic>-camera-stats`. Notifications also go to a webhook
# MAGIC if the configuration has one.

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl
from topiclake_examples import nest

settings = tl.notebook_settings(dbutils, "topic", "mode", "trigger", "storage", "table_path",
                                "checkpoint_path", pipeline="nest", more_than="1000")
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

# DBTITLE 1,State, topic and paths
tl.set_state(spark, settings)
topic, trigger = settings.pipeline.topic, settings.pipeline.trigger
table, checkpoint_path = settings.pipeline.location, settings.pipeline.checkpoint_path

# COMMAND ----------

# DBTITLE 1,Locations of the cameras
of_locations = {
    "env": settings.env,
    "storage": dbutils.widgets.get("storage"),
    "mode": dbutils.widgets.get("mode"),
    "trigger": trigger,
    "topic": f"{topic}-device-locations",
    "table" if settings.pipeline.table else "table_path": f"{table}_locations",
    "checkpoint_path": f"{checkpoint_path}_locations",
}
location_settings = tl.load_settings("nest_locations", of_locations, secrets=dbutils.secrets.get)
tl.await_caught_up(tl.start_ingest(spark, location_settings), trigger)
device_locations = nest.device_locations(spark, location_settings)
display(
    spark.sql("SELECT zip_code, city, count(*) AS cameras FROM device_locations GROUP BY ALL ORDER BY ALL")
)

# COMMAND ----------

# DBTITLE 1,Cameras of each log
cameras = nest.nest_cameras(tl.read_values(spark, settings))
cameras.printSchema()

# COMMAND ----------

# DBTITLE 1,Rejected records
quarantine_query = tl.start_quarantine(spark, settings)
tl.await_caught_up(quarantine_query, trigger)
display(tl.quarantine_reasons(spark, settings))

# COMMAND ----------

# DBTITLE 1,Archive in Parquet files and Delta
# A catalog has tables only, so the files of a table by name are next to its checkpoint.
archive_path = f"{settings.pipeline.table_path or checkpoint_path}_parquet"
dated = nest.dated_cameras(cameras)
to_files = tl.start_files(
    dated,
    settings,
    path=archive_path,
    checkpoint_path=f"{checkpoint_path}_archive",
    partition_by=["year", "month", "day"],
)
place = f"{checkpoint_path}_cameras"
sinks = {"table": tl.delta_batches(settings, spark, path=f"{table}_cameras")}
to_table = tl.start_sinks(dated, settings, sinks, checkpoint_path=place, name="cameras")
tl.await_caught_up(to_files, trigger)
tl.await_caught_up(to_table, trigger)
tl.create_files_table(spark, settings, path=archive_path, name="nest_archive", columns=dated.schema)
display(spark.sql("SELECT year, month, day, count(*) AS logs FROM nest_archive GROUP BY ALL ORDER BY ALL"))

# COMMAND ----------

# DBTITLE 1,Sightings to a compacted topic
stats_topic = f"{topic}-camera-stats"
tl.ensure_topic(settings.kafka, stats_topic, 4, compacted=True)
to_stats = tl.start_topic_writer(
    nest.sighting_records(nest.sightings_per_hour(cameras, device_locations)),
    settings,
    checkpoint_path=f"{checkpoint_path}_stats",
    topic=stats_topic,
    output_mode="complete",
)
tl.await_caught_up(to_stats, trigger)

# COMMAND ----------

# DBTITLE 1,Report of the newest counts
report = nest.sightings_report(
    tl.read_compacted(spark, settings, topic=stats_topic), more_than=dbutils.widgets.get("more_than")
)
display(report)

# COMMAND ----------

# DBTITLE 1,Chart of the report
displayHTML(nest.sightings_chart(report))

# COMMAND ----------

# DBTITLE 1,Offline cameras and notifications
place, states_path = f"{checkpoint_path}_states", f"{table}_states"
sinks = {
    "states": tl.delta_batches(settings, spark, path=states_path, mode="merge", keys=["device_id"]),
    "notices": tl.notify_batches(
        settings, spark, path=f"{table}_notices", notifications=nest.camera_notifications
    ),
}
camera_states = nest.camera_states(cameras)
to_states = tl.start_sinks(
    camera_states, settings, sinks, checkpoint_path=place, output_mode="update", name="states"
)
tl.await_caught_up(to_states, trigger)

# COMMAND ----------

states = tl.create_view(
    spark, settings, path=states_path, name="camera_states", columns=camera_states.schema
)
offline = spark.sql("SELECT * FROM camera_states WHERE NOT is_online ORDER BY since, device_id")
display(offline)

# COMMAND ----------

import json

archived = spark.table("nest_archive").count()
ended = {"archived": archived, "reported": report.count(), "offline": offline.count(), "cameras": states.count()}
dbutils.notebook.exit(json.dumps(ended))
