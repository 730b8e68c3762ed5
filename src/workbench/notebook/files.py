"""Files of notebooks: Databricks' source format, and Jupyter's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topiclake.errors import ConfigError
from workbench.notebook.source import NotebookSource, NotebookSourceError, parse_notebook

JUPYTER = ".ipynb"


def read_notebook(path: Path) -> NotebookSource:
    """Parse a notebook file: a `.py` in source format, or an `.ipynb`.

    The lines of an `.ipynb` are those of the same notebook in source format.

    Raises:
        ConfigError: The file is missing.
        NotebookSourceError: The file is not in one of the formats, or a cell is not supported.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"notebook {path} cannot be read ({error.strerror})"
        raise ConfigError(problem, "correct the path", notebook=str(path), reason="unreadable") from error
    return parse_notebook(path, _converted(path, content) if path.suffix == JUPYTER else content)


def _converted(path: Path, content: bytes) -> bytes:
    # Slow to import, and few notebooks need it. Its functions carry no types.
    import nbformat

    from workbench.notebook.conversion import to_source

    read: Any = nbformat.reads
    try:
        return to_source(read(content.decode("utf-8"), as_version=4))
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookSourceError(
            f"{path} is not a Jupyter notebook: {type(error).__name__}",
            "use a file that JupyterLab or Databricks saved",
            notebook=str(path),
            reason="no_notebook",
        ) from error
