# Databricks notebook source
# MAGIC %md
# MAGIC # Changes of a shop's database
# MAGIC
# MAGIC Creates the shop's tables in PostgreSQL if they are missing, and changes them in ten transactions at once. The changes
# MAGIC are inserts, updates, deletes, other keys, large values, truncates, and a new column. Then it waits until Debezium has
# MAGIC published them. The notebook `cdc_orders` reads the topics.
# MAGIC
# MAGIC **Run it** as the first task of the job `cdc_orders`. On a laptop, start the database with
# MAGIC `python -m workbench up --with postgres`, and run `python -m workbench run notebooks/shop_change.py -p statements=10000`.
# MAGIC
# MAGIC | parameter | meaning |
# MAGIC |---|---|
# MAGIC | `env` | `conf/<env>.yaml` over `conf/base.yaml`; empty: from conf |
# MAGIC | `statements` | the number of statements after the first inserts |
# MAGIC | `seed` | another seed makes other changes |
# MAGIC
# MAGIC The database is that of the variables `WORKBENCH_POSTGRES` and `WORKBENCH_POSTGRES_USER`, and of the secret
# MAGIC `workbench/postgres-password`. The package is `topiclake[jdbc]`, since the database needs psycopg.

# COMMAND ----------

# DBTITLE 1,Parameters
import topiclake as tl
from topiclake_examples import shop

settings = tl.notebook_settings(dbutils, pipeline="shop", statements="2000", seed="1")
half, seed = int(dbutils.widgets.get("statements")) // 2, int(dbutils.widgets.get("seed"))
conninfo = shop.shop_conninfo(dbutils.secrets.get)

# COMMAND ----------

# DBTITLE 1,Tables of the shop
shop.create_shop(conninfo)
# Each table has rows and a topic, however few statements follow.
changed = shop.change_shop(conninfo, 200, keys=50, kinds=shop.INSERTS, seed=seed)

# COMMAND ----------

# DBTITLE 1,Changes before the new column
# Debezium's records of `move_review` may lack a large value for good (docs/changes.md).
kinds = set(shop.KINDS) - {"move_review"}
changed += shop.change_shop(conninfo, half, sessions=10, keys=50, kinds=kinds, seed=seed)

# COMMAND ----------

# DBTITLE 1,Changes with the new column
shop.add_customer_level(conninfo)
changed += shop.change_shop(conninfo, half, sessions=10, keys=50, kinds=kinds, seed=-seed)

# COMMAND ----------

# DBTITLE 1,Debezium has published all changes
shop.await_published(conninfo)
print(f"{changed.total() - changed['rolled_back']} changes; {changed['rolled_back']} transactions rolled back")

# COMMAND ----------

import json

dbutils.notebook.exit(json.dumps(changed))
