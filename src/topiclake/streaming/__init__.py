"""How Spark runs a query: its start, its checkpoint, its restarts, its failures and what it has lost."""
