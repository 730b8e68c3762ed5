"""A topic as a DataFrame: each record is a row, or is refused with a reason; nothing is written."""
