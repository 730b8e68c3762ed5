"""The files of JupyterLab: it opens and saves files in Databricks source format as notebooks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from anyio.to_thread import run_sync
from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.filecheckpoints import AsyncGenericFileCheckpoints
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from tornado.web import HTTPError
from traitlets import Unicode, default

from topiclake.errors import TopiclakeError
from workbench.host.files import replace_bytes
from workbench.lab.kernelspec import KERNEL_NAME, SHOWN_NAME
from workbench.lab.outputs import SavedOutputs
from workbench.notebook.conversion import to_notebook, to_source
from workbench.notebook.source import is_notebook, parse_notebook

SOURCE, JUPYTER = ".py", ".ipynb"


class Checkpoints(AsyncGenericFileCheckpoints):
    """Checkpoints in the workbench's folder, not next to the notebooks where git would see them."""

    def checkpoint_path(self, checkpoint_id: str, path: str) -> str:
        """Return the file of a checkpoint."""
        # Jupyter uses the system's temporary folder if this one is missing.
        Path(self._get_os_path(path)).parent.mkdir(parents=True, exist_ok=True)
        return str(super().checkpoint_path(checkpoint_id, path))


class Contents(AsyncLargeFileManager):
    """Jupyter's files, of which a `.py` in Databricks source format is a notebook.

    A file that is saved as it was opened has the same bytes. The source file holds no outputs. A folder of
    the workbench keeps them, and they come back when the notebook is opened again. Jupyter's notebooks
    (.ipynb) and plain modules (.py) behave as they do elsewhere.
    """

    outputs_folder = Unicode(help="Where the outputs of notebooks in source format are kept.", config=True)

    @default("checkpoints_class")
    def _default_checkpoints_class(self) -> type[Checkpoints]:
        return Checkpoints

    async def get(
        self,
        path: str,
        content: bool = True,
        type: str | None = None,
        format: str | None = None,
        require_hash: bool = False,
    ) -> dict[str, Any]:
        """Return a file, a notebook or a folder."""
        if type is None and is_notebook(Path(self._get_os_path(path.strip("/")))):
            type = "notebook"
        model: dict[str, Any] = await super().get(path, content, type, format, require_hash)
        return model

    async def new_untitled(self, path: str = "", type: str = "", ext: str = "") -> dict[str, Any]:
        """Make a new file or folder; a new notebook is in source format."""
        if type == "notebook" and ext != JUPYTER:
            name = await self.increment_filename(f"{self.untitled_notebook}{SOURCE}", path.strip("/"))
            model: dict[str, Any] = await self.new({"type": "notebook"}, f"{path}/{name}")
        else:
            model = await super().new_untitled(path, type, ext)
        return model

    async def rename_file(self, old_path: str, new_path: str) -> None:
        """Rename; a notebook whose ending changes between .py and .ipynb is converted."""
        old, new = old_path.strip("/"), new_path.strip("/")
        if await self._changes_format(old, new):
            model = await self.get(old, type="notebook")
            await self.save({"type": "notebook", "format": "json", "content": model["content"]}, new)
            await super().delete_file(old)
            if new.endswith(JUPYTER):
                self._outputs.forget(old)
        else:
            await super().rename_file(old, new)
            self._outputs.move(old, new)

    async def delete_file(self, path: str) -> None:
        """Delete a file or folder, and its kept outputs."""
        await super().delete_file(path)
        self._outputs.forget(path.strip("/"))

    def mark_trusted_cells(self, nb: nbformat.NotebookNode, path: str = "") -> None:
        """Mark whether cells' outputs were made here; Jupyter would also warn about cells without outputs."""
        self.notary.mark_cells(nb, self.notary.check_signature(nb))

    async def _read_notebook(
        self,
        os_path: str,
        as_version: int = 4,
        capture_validation_error: dict[str, Any] | None = None,
        raw: bool = False,
    ) -> Any:  # noqa: ANN401 - a notebook, or with `raw` also its bytes
        if not os_path.endswith(SOURCE):
            return await super()._read_notebook(os_path, as_version, capture_validation_error, raw=raw)
        content: Any = (await self._read_file(os_path, "byte"))[0]
        notebook = await run_sync(self._notebook_of, os_path, content)
        return (notebook, content) if raw else notebook

    async def _save_notebook(
        self,
        os_path: str,
        nb: nbformat.NotebookNode,
        capture_validation_error: dict[str, Any] | None = None,
    ) -> None:
        if os_path.endswith(SOURCE):
            saved = await run_sync(self._save_source, os_path, nb)
            if self.notary.check_signature(nb):
                # Jupyter signed the notebook of the browser; the notebook from the file differs a little.
                self.notary.sign(saved)
        else:
            await super()._save_notebook(os_path, nb, capture_validation_error)

    def _save_source(self, os_path: str, notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
        """Write a notebook; return it as it will be read."""
        content, file = to_source(notebook), Path(os_path)
        with self.perm_to_403(os_path):
            # The modification time stays, too: editors and git recognize changes by it.
            if not file.exists() or file.read_bytes() != content:
                replace_bytes(file, content)
        self._outputs.save(self._path_of(os_path), notebook)
        return self._notebook_of(os_path, content)

    def _notebook_of(self, os_path: str, content: bytes) -> nbformat.NotebookNode:
        try:
            notebook = to_notebook(parse_notebook(Path(os_path), content, lenient=True))
        except TopiclakeError as error:
            raise HTTPError(400, str(error)) from None
        # As the browser writes it once the kernel answers: else each notebook would appear as edited.
        spec = {"name": KERNEL_NAME, "display_name": SHOWN_NAME, "language": "python"}
        notebook.metadata |= {"kernelspec": spec, "language_info": IPythonKernel.language_info}
        self._outputs.restore(self._path_of(os_path), notebook)
        return notebook

    async def _changes_format(self, old: str, new: str) -> bool:
        if {Path(old).suffix, Path(new).suffix} != {SOURCE, JUPYTER} or await self.file_exists(new):
            return False
        return old.endswith(JUPYTER) or is_notebook(Path(self._get_os_path(old)))

    def _path_of(self, os_path: str) -> str:
        return Path(os.path.relpath(os_path, self.root_dir)).as_posix()

    @property
    def _outputs(self) -> SavedOutputs:
        return SavedOutputs(Path(self.outputs_folder))
