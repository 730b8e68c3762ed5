"""`python -m workbench dashboard`: a page with every streaming query that ran below this home."""
