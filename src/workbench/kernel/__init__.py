"""The process that executes the cells of a notebook, with `spark`, `dbutils` and magic commands."""
