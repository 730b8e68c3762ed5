"""Delta tables: rows are appended once, columns are added, and the log is safe from a second driver."""
