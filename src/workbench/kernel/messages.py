"""Communication of runner and kernel: the kernel's context, and messages without secrets."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.session import Session

from workbench.host.files import replace_json
from workbench.host.redaction import Redactor

#: Names the file with the kernel's `Context`.
CONTEXT_VARIABLE = "WORKBENCH_KERNEL_CONTEXT"
EXIT_MIME_TYPE = "application/vnd.topiclake.notebook-exit+json"
FAILURE_MESSAGE = "workbench_failure"

#: How a kernel is started; Jupyter puts the file in.
KERNEL_COMMAND = (sys.executable, "-m", "workbench.kernel.kernel", "-f", "{connection_file}")

#: Where Jupyter's server names the notebook that it starts a kernel for.
SESSION_VARIABLE = "JPY_SESSION_NAME"

#: Messages with the content of a notebook; the others hold only words of the protocol.
SHOWN_MESSAGES = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "error", "execute_reply"}
    | {"execute_input", FAILURE_MESSAGE}
    # Shift-Tab, Tab and the debugger show values of variables.
    | {"inspect_reply", "complete_reply", "history_reply", "debug_reply", "debug_event"}
)

#: The values of these keys belong to the protocol, also in such messages.
PROTOCOL_KEYS = ("status", "name", "type", "command", "event")

#: The JVM writes it before it reads any setting, and users cannot change it.
NOISE = re.compile(r"WARNING: Using incubator modules:.*\n?")


@dataclass(frozen=True)
class Context:
    """The parameters of a kernel's start; a lab's kernel receives the name of its notebook from Jupyter."""

    notebook: str
    home_folder: str
    project_folder: str
    parameters: dict[str, str]
    #: Values that are never shown: the caller fetched them, and a parameter may hold one.
    secrets: tuple[str, ...] = field(default=(), repr=False)
    #: Whether JupyterLab shows the notebook.
    in_lab: bool = False
    #: Whether Spark starts with the kernel, and not with the first cell that needs it.
    with_spark: bool = False

    def save(self, file: Path) -> None:
        """Write it for the kernel process; its owner alone can read it."""
        replace_json(file, asdict(self))

    @classmethod
    def load(cls, file: Path) -> Context:
        """Read what `save` has written."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def kernel_environment(
    inherited: Mapping[str, str], context: Path, ipython: Path, project: Path
) -> dict[str, str]:
    """Return the variables of a kernel's process, in addition to those that it inherits.

    Args:
        inherited: The variables that it inherits.
        context: Where its `Context` was saved.
        ipython: A folder for IPython: the user's own start-up files and history stay out of it.
        project: Its folder `src` has the packages of notebooks, for Spark's Python workers, too.
    """
    folders = [str(project / "src"), inherited.get("PYTHONPATH", "")]
    return {
        CONTEXT_VARIABLE: str(context),
        "IPYTHONDIR": str(ipython),
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONUNBUFFERED": "1",
    }


class StartNoise:
    """Removes the JVM's start message from the text of a stream; its line may end in the next text."""

    def __init__(self) -> None:
        self._line_is_open = False

    def remove(self, text: str) -> str:
        """Return a text without the message."""
        if self._line_is_open:
            text = text.removeprefix("\n")
        matches = list(NOISE.finditer(text))
        self._line_is_open = bool(matches) and matches[-1].end() == len(text) and not text.endswith("\n")
        return NOISE.sub("", text)


class RedactingSession(Session):
    """Sends the kernel's messages, without the secrets that the notebook fetched.

    The end of a stream's text may be the first half of a secret. Then it waits for the next text, or for the
    end of the cell.
    """

    redactor = Redactor()

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets
        super().__init__(**kwargs)
        self._pending: dict[str, str] = {}
        self._releasing = False
        self._lock = threading.RLock()
        self._noise: dict[str, StartNoise] = defaultdict(StartNoise)

    def send(
        self,
        stream: Any,  # noqa: ANN401 - a socket of one of several kinds
        msg_or_type: dict[str, Any] | str,
        *args: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> dict[str, Any] | None:
        """Send a message, without the JVM's start message in the text of a stream."""
        if isinstance(msg_or_type, dict) and msg_or_type["header"]["msg_type"] == "stream":
            content = msg_or_type["content"]
            text = self._noise[content["name"]].remove(content["text"])
            if content["text"] and not text:
                return None
            msg_or_type = {**msg_or_type, "content": {**content, "text": text}}
        return super().send(stream, msg_or_type, *args, **options)

    def serialize(self, msg: dict[str, Any], ident: list[bytes] | bytes | None = None) -> list[bytes]:
        """Turn a message into bytes."""
        kind, content = msg["header"]["msg_type"], msg.get("content")
        if kind in SHOWN_MESSAGES and isinstance(content, dict):
            if kind == "stream":
                content = {**content, "text": self._join(content["name"], content["text"])}
            allowed = {key: content[key] for key in PROTOCOL_KEYS if key in content}
            redactable = {key: value for key, value in content.items() if key not in allowed}
            msg = {**msg, "content": {**allowed, **self._redacted(redactable)}}
        return super().serialize(msg, ident)

    def release(self) -> Iterator[tuple[str, str]]:
        """Yield the waiting text of each stream; text that is sent meanwhile does not wait."""
        with self._lock:
            messages, self._pending, self._releasing = self._pending, {}, True
            try:
                yield from messages.items()
            finally:
                self._releasing = False

    def _redacted(self, content: dict[str, Any]) -> dict[str, Any]:
        return {key: self.redactor.redact_all(value) for key, value in content.items()}

    def _join(self, name: str, text: str) -> str:
        with self._lock:
            if self._releasing:
                return text
            joined = self.redactor.redact(self._pending.pop(name, "") + text)
            open_end = self.redactor.open_end(joined)
            if open_end:
                self._pending[name] = joined[-open_end:]
            return joined[: len(joined) - open_end]
