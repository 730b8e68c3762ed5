import json

import pytest

from workbench.host.redaction import Redactor
from workbench.kernel.messages import RedactingSession, StartNoise

NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([f"{NOISE}\n"], ""),
        ([NOISE, "\n", "\nown\n"], "\nown\n"),
        ([NOISE, "\nown"], "own"),
        (["before\n", f"{NOISE}\nafter\n"], "before\nafter\n"),
        (["WARNING: mine\n", "\n"], "WARNING: mine\n\n"),
    ],
)
def test_what_the_jvm_says_at_its_start_is_left_out(pieces, shown):
    noise = StartNoise()
    assert "".join(map(noise.remove, pieces)) == shown


SECRET = "s3cr-et-value"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("inspect_reply", {"status": "ok", "found": True, "data": {"text/plain": f"String form: {SECRET}"}}),
        ("complete_reply", {"status": "ok", "matches": [f"x['{SECRET}']"], "cursor_start": 0}),
        ("history_reply", {"status": "ok", "history": [[0, 1, f"pw = '{SECRET}'"]]}),
        ("debug_reply", {"type": "response", "command": "variables", "body": {"value": f"'{SECRET}'"}}),
        ("debug_event", {"type": "event", "event": "output", "body": {"output": SECRET}}),
        ("stream", {"name": "stdout", "text": SECRET}),
    ],
)
def test_no_message_that_shows_something_holds_a_secret(kind, content, monkeypatch):
    monkeypatch.setattr(RedactingSession, "redactor", Redactor([SECRET, "response", "event"]))
    session = RedactingSession(key=b"")
    sent = json.loads(session.serialize(session.msg(kind, content))[-1])
    assert sent == json.loads(json.dumps(content).replace(SECRET, "[REDACTED]"))
