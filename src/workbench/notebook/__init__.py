"""The file of a notebook: its cells, what it includes, its parameters, and Jupyter's format."""
