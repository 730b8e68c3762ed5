"""`dbutils.library`: the Python of the notebook."""

from __future__ import annotations

import sys

from workbench.dbutils.help import Documented


class Library(Documented):
    """The notebook's Python."""

    def restartPython(self) -> None:  # noqa: N802 - Databricks' name
        """Keep the same Python process: `%pip` here replaces no package that is installed already.

        On Databricks the notebook's variables are gone afterwards; here they are not.
        """
        sys.stdout.write("Python keeps running: what %pip installed can be imported without a restart\n")
