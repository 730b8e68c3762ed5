"""JupyterLab over the project's notebooks: `python -m workbench lab`."""
