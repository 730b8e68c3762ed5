"""The runner's side of a kernel: nbclient, with live streams and a report of failures."""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty
from typing import Any

import nbformat
from nbclient import NotebookClient

from workbench.kernel.messages import FAILURE_MESSAGE
from workbench.runner.progress import Progress

#: After this call, displayed streams have shown something. The notebook may have deleted its own names.
END_CELLS = "get_ipython().kernel.workspace.end_cells()"
#: How long a message of a kernel that has ended may be on its way.
LAST_MESSAGE_SECONDS = 1.0


class Client(NotebookClient):
    """nbclient, which shows the kernel's streams as they come and keeps its report of a failure."""

    progress: Progress
    failure: Mapping[str, Any] | None = None

    def process_message(
        self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int
    ) -> nbformat.NotebookNode | None:
        """Take one message of the running cell."""
        if msg["msg_type"] == FAILURE_MESSAGE:
            self.failure = msg["content"]
            return None
        if msg["msg_type"] == "stream":
            self.progress.stream(msg["content"]["name"], msg["content"]["text"])
        self._show_stream(msg)
        return super().process_message(msg, cell, cell_index)

    async def end_cells(self) -> None:
        """Wait after the last cell for the streams that are shown.

        Raises:
            CellExecutionError: A stream failed.
        """
        self.timeout, self.failure = 0, None
        notebook_format: Any = nbformat.v4
        self.nb.cells.append(notebook_format.new_code_cell(END_CELLS))
        try:
            await self.async_execute_cell(self.nb.cells[-1], len(self.nb.cells) - 1)
        finally:
            self.nb.cells.pop()

    async def receive_last_updates(self) -> None:
        """Take what the kernel shows after all cells, until it reports its end.

        Such messages belong to no cell; only updates of existing outputs count.
        """
        manager: Any = self.km
        iopub: Any = self.kc.iopub_channel if self.kc else None
        kind = "" if iopub else "shutdown_reply"
        while kind != "shutdown_reply":
            try:
                message = await iopub.get_msg(timeout=LAST_MESSAGE_SECONDS)
            except Empty:
                # The cell that was interrupted may have received the report.
                if not await manager.is_alive():
                    return
                continue
            kind = message["msg_type"]
            if kind == "update_display_data" and self.nb.cells:
                self._show_stream(message)
                super().process_message(message, self.nb.cells[0], 0)

    def _show_stream(self, message: Mapping[str, Any]) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            # Only the outputs of streams name themselves in their metadata.
            display_id = message["content"]["metadata"].get("display_id")
            if display_id is not None:
                self.progress.show_stream(display_id, message["content"]["data"]["text/plain"])
