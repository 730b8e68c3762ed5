"""JupyterLab's application, under this project's name and on sockets that listen already."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import LabApp
from traitlets.config import Config

from workbench.lab.kernelspec import SHOWN_NAME


class LabServer(ServerApp):
    """Jupyter's server, which would find a free port, release it, and bind it later."""

    listening: Sequence[socket.socket] = ()

    def _find_http_port(self) -> None:
        return

    def _bind_http_server_tcp(self) -> bool:
        self.http_server.add_sockets(self.listening)
        return True


def initialize_lab(config: Config, listening: Sequence[socket.socket]) -> ServerApp:
    """Return the server with JupyterLab, and no other extensions, ready to start."""
    LabServer.listening = listening
    LabApp.serverapp_class = LabServer
    LabApp.app_name = SHOWN_NAME  # the page's title
    LabApp.load_other_extensions = False
    server: ServerApp = LabApp.initialize_server(argv=[], config=config)
    return server
