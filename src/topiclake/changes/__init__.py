"""Changes of keyed rows in Delta tables: each change counts once, in the order of its source."""
