"""A notebook from its first cell to its last, and the report of the run."""
