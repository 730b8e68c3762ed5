# Databricks notebook source
# MAGIC %md
# MAGIC # The tables of a shop's database
# MAGIC
# MAGIC Carries the changes of each table of the database into a Delta table, and all versions of the customers into another one.
# MAGIC Each change counts exactly once. Then it shows a customer's orders and history.
# MAGIC
# MAGIC **Run it** as the job `cdc_orders`, which changes the database before (`shop_change`).
# MAGIC
# MAGIC | parameter | meaning | empty |
# MAGIC |---|---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml` | from conf |
# MAGIC | `storage` | where tables are: `wasbs://…`, `abfss://…`, `s3a://…`, `/Volumes/…` or `file:///…` | from conf |
# MAGIC | `customer` | the id of a customer | the one with most versions |
# MAGIC
# MAGIC The pipelines are `shop`, with the newest row of each key, and `shop_customers`, with all versions (SCD type 2).

# COMMAND ----------

# DBTITLE 1,Settings and storage
import topiclake as tl

settings = tl.notebook_settings(dbutils, "storage", pipeline="shop", customer="")
given = {"env": settings.env, "storage": dbutils.widgets.get("storage")}
history = tl.load_settings("shop_customers", given, secrets=dbutils.secrets.get)

# COMMAND ----------

# DBTITLE 1,Changes of all tables
tl.mount(dbutils, settings.storage, spark)
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, settings.pipeline.trigger)
display(tl.create_view(spark, settings))

# COMMAND ----------

# DBTITLE 1,All versions of the customers
history_query = tl.start_ingest(spark, history)
tl.await_caught_up(history_query, history.pipeline.trigger)
tl.create_view(spark, history)

# COMMAND ----------

# DBTITLE 1,Each change in exactly one place
audits = tl.audit_ingest(spark, settings), tl.audit_ingest(spark, history)
print(*audits, sep="\n\n")
audits[0].require_ok()
audits[1].require_ok()

# COMMAND ----------

# DBTITLE 1,A customer
of_customers = settings.for_topic("shop.public.customers")
tl.create_view(spark, of_customers, name="customers")
most = "SELECT id FROM customers JOIN customer_history USING (id) GROUP BY id ORDER BY count(*) DESC, id"
customer = int(dbutils.widgets.get("customer") or spark.sql(most).first()["id"])

# COMMAND ----------

# DBTITLE 1,The customer's orders
tl.create_view(spark, settings.for_topic("shop.public.orders"), name="orders")
display(spark.sql(f"SELECT * FROM orders WHERE customer_id = {customer} ORDER BY ordered_at"))

# COMMAND ----------

# DBTITLE 1,The customer's history (SCD 2)
versions = spark.sql(f"SELECT * FROM customer_history WHERE id = {customer} ORDER BY __START_AT")
display(versions)

# COMMAND ----------

# DBTITLE 1,The customer after the first ingest
first = tl.table_history(spark, of_customers).where("operation = 'MERGE'").agg({"version": "min"}).first()[0]
display(spark.sql(
    f"SELECT * FROM {tl.table_identifier(of_customers)} VERSION AS OF {first} "
    f"WHERE id = {customer} AND NOT _cdc.deleted"
))

# COMMAND ----------

import json
from dataclasses import asdict

summaries = {"shop": asdict(tl.summarize(spark, settings, query)),
             "shop_customers": asdict(tl.summarize(spark, history, history_query))}
dbutils.notebook.exit(json.dumps(summaries | {"customer": customer, "versions": versions.count()}))
