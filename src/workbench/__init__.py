"""What a laptop lacks and Databricks has: dbutils, display, a notebook runner and embedded services."""
