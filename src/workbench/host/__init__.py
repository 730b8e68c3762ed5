"""This machine: the workbench's folder, files, processes, ports and Java, and the redaction of secrets."""
