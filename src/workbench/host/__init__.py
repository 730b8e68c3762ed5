"""This machine: the workbench's folder, its files, processes, ports and Java, and what must not be shown."""
