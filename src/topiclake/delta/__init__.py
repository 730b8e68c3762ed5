"""Delta tables: rows come in once, appended or merged; columns are added; no second driver harms the log."""
