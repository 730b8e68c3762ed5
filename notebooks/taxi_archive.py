# Databricks notebook source
# MAGIC %md
# MAGIC # Taxi trips from Kafka into Parquet files, or a Delta table
# MAGIC
# MAGIC Reads Avro from a Kafka topic, decodes each record by its own writer schema and archives it, exactly once. A
# MAGIC schema version that is registered while it runs adds its columns. A record that does not decode, or has the other
# MAGIC form of Avro, goes to the quarantine of the Delta table. It ends the Parquet stream, and nothing of its batch is
# MAGIC written. The error names topic, partition, offset and reason.
# MAGIC
# MAGIC **Run it** cell by cell, as a job (`trigger=availableNow` ends when the topic is drained), or on a laptop with
# MAGIC `python -m workbench run notebooks/taxi_archive.py`. Running it again reads only what is new.
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `pipeline` | `taxi`: into Parquet files; `taxi_delta`: into a Delta table | |
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `topic` | Kafka topic; the schemas are those of subject `<topic>-value` | from conf |
# MAGIC | `avro_form` | `confluent`: values name their schema; `plain`: values do not, as in the article | from conf |
# MAGIC | `plain_versions` | for `plain`: versions that values may have, such as `1` or `1,2` | all |
# MAGIC | `starting_offsets` | `latest`, `earliest` or offsets as JSON; counts on the first run only | from conf |
# MAGIC | `trigger` | `availableNow`, or an interval such as `1 second` | from conf |
# MAGIC | `keep_running_seconds` | with an interval: how long the stream runs after the first records | 0 |
# MAGIC | `storage` | what is mounted: see `gps_ingest` | from conf |
# MAGIC | `table_path` | where files or table are: below the mount, or a URI such as `s3a://<bucket>/<folder>` | from conf |
# MAGIC | `checkpoint_path` | where the state of the stream is; one for each `table_path` | from conf |
# MAGIC | any other key of the pipeline | has no widget; a job or `-p` sets it | from conf |

# COMMAND ----------

# DBTITLE 1,1. Settings
import topiclake as tl

settings = tl.notebook_settings(dbutils, "topic", "avro_form", "plain_versions", "starting_offsets",
                                "trigger", "storage", "table_path", "checkpoint_path",
                                pipeline=["taxi", "taxi_delta"], keep_running_seconds="0")
display(tl.settings_table(spark, settings))

# COMMAND ----------

# DBTITLE 1,2. Schema of the topic's values
registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
schemas = registry.latest_of(settings.pipeline.subjects("value", topic=settings.pipeline.topic))
print(*schemas, sep="\n\n")

# COMMAND ----------

# DBTITLE 1,3. Storage, mounted
tl.mount(dbutils, settings.storage, spark)
display(dbutils.fs.mounts())

# COMMAND ----------

# DBTITLE 1,4. Stream from Kafka to files
seconds = dbutils.widgets.get("keep_running_seconds")
is_parquet = settings.name == "taxi"
if is_parquet:
    archive = tl.start_archive(spark, settings)
    archive.await_caught_up()
    archive.keep_running(seconds)
else:
    query = tl.start_ingest(spark, settings)
    tl.await_caught_up(query, settings.pipeline.trigger)
    tl.keep_running(query, seconds)

# COMMAND ----------

# DBTITLE 1,5. The archive as a view
if is_parquet:
    archive.create_view()
else:
    tl.create_view(spark, settings)
display(spark.sql("SELECT * FROM taxi LIMIT 100"))

# COMMAND ----------

# DBTITLE 1,Trips and fares a day
display(
    spark.sql(
        "SELECT to_date(tpep_pickup_datetime) AS day, count(*) AS trips, round(avg(total_amount), 2) AS dollars "
        "FROM taxi GROUP BY ALL ORDER BY day"
    )
)

# COMMAND ----------

# DBTITLE 1,Files and rows of the archive
summary = archive.summary() if is_parquet else tl.summarize(spark, settings, query)
display(summary.counts(spark))

# COMMAND ----------

dbutils.notebook.exit(summary.to_json())
