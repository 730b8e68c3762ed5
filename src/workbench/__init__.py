"""The local runtime of notebooks: dbutils, display, a runner, jobs and embedded services."""
