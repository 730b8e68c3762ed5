"""Delta tables: append or merge each batch once, add columns, and protect the log from a second driver."""
