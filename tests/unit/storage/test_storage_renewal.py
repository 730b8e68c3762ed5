"""What a running query does with a token that was put into its secret."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

from topiclake.config.storage import StorageSettings
from topiclake.storage import expiry, renewal

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Query:
    """Looks five times, a minute apart."""

    def __init__(self):
        self.now, self.looks = NOW, 0

    def has_ended(self, seconds):
        self.looks += 1
        self.now = NOW + timedelta(seconds=seconds * self.looks)
        return self.looks > 5


def test_a_new_token_is_taken_when_it_begins_and_the_old_one_is_kept_until_then(monkeypatch, caplog):
    query, taken = Query(), []
    monkeypatch.setattr(expiry, "_now", lambda: query.now)
    monkeypatch.setattr(renewal.mount, "apply_credential", lambda *given: taken.append(query.now))
    values = {
        "source": "wasbs://raw@account.blob.core.windows.net/gps",
        "mount_point": "/mnt/lake",
        "sas_token": "{{secrets/azure/lake-sas}}",
    }
    token = f"st={NOW + timedelta(minutes=3):%Y-%m-%dT%H:%M:%SZ}&se=2026-04-01&sig=x"
    storage = StorageSettings.model_validate(values, context={"secrets": lambda *_: token})
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: None))
    renewal._follow(query.has_ended, spark, storage, None)
    assert taken == [NOW + timedelta(minutes=minutes) for minutes in (3, 4, 5)]
    (first, second) = caplog.messages
    assert "begins at 2026-03-01 12:03:00 UTC, in 0 h 2 min" in first
    assert "in 0 h 1 min" in second
