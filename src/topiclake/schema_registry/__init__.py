"""The schema registry: what it answers, how often it is asked, and how a record names its schema."""
