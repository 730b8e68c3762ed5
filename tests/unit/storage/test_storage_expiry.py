"""When a shared access signature begins and ends, and who is told before."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from tests.services.azure_sas import container_sas
from tests.support.stand_in import stand_in
from topiclake.config.storage import StorageSettings
from topiclake.errors import StorageError
from topiclake.storage import expiry
from topiclake.storage.access import hadoop_settings
from topiclake.storage.failures import refusal
from workbench.services.azurite import account_sas

WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
ABFSS = "abfss://raw@account.dfs.core.windows.net/gps"
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time of day, and that of the clock that only runs forward; both stand still."""
    times = {"now": NOW, "monotonic": 50.0}
    monkeypatch.setattr(expiry, "_now", lambda: times["now"])
    monkeypatch.setattr(expiry, "time", stand_in(time, monotonic=lambda: times["monotonic"]))
    monkeypatch.setattr(expiry, "_reminded", {})
    return times


def opened(token, source=WASBS, **more):
    given = {"source": source, "mount_point": "/mnt/lake", "sas_token": "{{secrets/azure/lake-sas}}"} | more
    storage = StorageSettings.model_validate(given, context={"secrets": lambda *_: token})
    return storage, hadoop_settings(storage)


def ending(hours):
    return (
        f"sv=2022-11-02&se={NOW + timedelta(hours=hours):%Y-%m-%dT%H%%3A%M%%3A%SZ}&sr=c&sig=very%2Fsecret%3D"
    )


def at(*moment, **zone):
    return datetime(*moment, tzinfo=timezone(timedelta(**zone)))


@pytest.mark.parametrize(
    ("token", "end"),
    [
        ("2026-03-02", at(2026, 3, 2)),
        ("2026-03-02T08:30Z", at(2026, 3, 2, 8, 30)),
        ("2026-03-02T08%3A30%3A15Z", at(2026, 3, 2, 8, 30, 15)),
        ("2026-03-02T08:30:15.1234567Z", at(2026, 3, 2, 8, 30, 15)),
        ("2026-03-02T08:30:15%2B02:00", at(2026, 3, 2, 8, 30, 15, hours=2)),
        ("2026-03-02T08:30:15+02:00", at(2026, 3, 2, 8, 30, 15, hours=2)),
        ("2026-03-02T08:30-05:00", at(2026, 3, 2, 8, 30, hours=-5)),
        ("2026-13-02", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_a_token_tells_its_end(token, end):
    assert expiry.end_time(f"?sv=2022-11-02&se={token}&sp=rl&sig=x") == end


@pytest.mark.parametrize(
    "token", ["sv=2022-11-02&si=policy&sr=c&sig=se", "", "no token", "sig=se%3D2020-01-01"]
)
def test_a_token_of_a_stored_access_policy_tells_no_end(token):
    assert expiry.end_time(token) is None
    expiry.require_current(*opened(token))


def test_the_end_of_the_workbenchs_own_token_is_read():
    assert expiry.end_time(container_sas("a", "a2V5", "raw", NOW)) == NOW
    day = expiry.end_time(account_sas("a", "a2V5")) - datetime.now(timezone.utc)
    assert timedelta(hours=23, minutes=59) < day <= timedelta(hours=24)


@pytest.mark.parametrize("source", [WASBS, ABFSS])
def test_a_token_that_ends_soon_is_warned_about_without_being_shown(source, caplog):
    expiry.require_current(*opened(ending(11.5), source))
    (message,) = caplog.messages
    assert message == (
        f"{source}: its SAS token, the secret azure/lake-sas, ends at 2026-03-01 23:30:00 UTC, "
        "in 11 h 30 min by this machine's clock; "
        "try: put a new token into the secret azure/lake-sas, which running queries read each minute"
    )


@pytest.mark.parametrize(
    ("hours", "span", "warnings"),
    [(12, {}, 1), (12.1, {}, 0), (23.9, {}, 0), (11, {"expiry_warning_hours": 2}, 0)],
)
def test_only_a_token_that_ends_within_the_span_is_warned_about(hours, span, warnings, caplog):
    storage, settings = opened(ending(hours), **span)
    expiry.require_current(storage, settings)
    assert len(caplog.messages) == warnings
    expiry.remind(storage, settings)
    assert len(caplog.messages) == 2 * warnings


def beginning(hours):
    return f"st={NOW + timedelta(hours=hours):%Y-%m-%dT%H%%3A%M%%3A%SZ}&{ending(24)}"


@pytest.mark.parametrize("source", [WASBS, ABFSS])
def test_a_token_that_is_good_later_only_is_refused_in_a_sentence(source):
    with pytest.raises(StorageError) as raised:
        expiry.require_current(*opened(beginning(0.5), source))
    assert raised.value.fields == {
        "source": source,
        "secret": "azure/lake-sas",
        "begins_at": "2026-03-01 12:30:00 UTC",
    }
    assert "in 0 h 30 min" in raised.value.cause
    assert "this machine's clock" in raised.value.remedy
    assert "the secret azure/lake-sas" in raised.value.remedy


@pytest.mark.parametrize("token", [beginning(5 / 60), beginning(-1), ending(24)])
def test_a_token_that_has_begun_or_does_within_what_clocks_differ_is_taken(token, caplog):
    expiry.require_current(*opened(token))
    assert caplog.messages == []


#: As Hadoop tells what Azure answers: Azure's own text says no more.
REFUSED = """An error occurred while calling o1.load.
: org.apache.hadoop.fs.azure.AzureException: com.microsoft.azure.storage.StorageException: Server failed to \
authenticate the request.
"""
WHY = "com.microsoft.azure.storage.StorageException: Server failed to authenticate the request"


def test_a_token_that_is_refused_though_it_is_good_by_this_machines_clock_is_told_with_both():
    refused = refusal(opened(ending(1))[0], f"{WASBS}/t", Exception(REFUSED))
    assert (refused.cause, refused.remedy) == (
        f"{WASBS} refuses the SAS token, good until 2026-03-01 13:00:00 UTC by this machine's clock, "
        f"2026-03-01 12:00:00 UTC ({WHY})",
        "renew the secret azure/lake-sas, or compare the clocks",
    )


@pytest.mark.parametrize("token", [ending(-1), "sv=2022-11-02&si=policy&sr=c&sig=x", None])
def test_a_refused_token_that_has_ended_or_cannot_be_read_says_nothing_of_clocks(token):
    values = {"source": WASBS, "mount_point": "/mnt/lake", "sas_token": "{{secrets/azure/lake-sas}}"}
    # Without a token, there is nothing that reads secrets.
    reads = {"secrets": lambda *_: token} if token else {}
    refused = refusal(StorageSettings.model_validate(values, context=reads), f"{WASBS}/t", Exception(REFUSED))
    assert refused.fields == {
        "source": WASBS,
        "path": f"{WASBS}/t",
        "reason": "credential",
        "detail": WHY,
        "secrets": "azure/lake-sas",
    }
    assert "clock" not in str(refused)
    assert refused.remedy == "renew the secret azure/lake-sas"


@pytest.mark.parametrize("hours", [-0.01, 0])
def test_a_token_that_has_ended_is_refused_in_a_sentence(hours):
    with pytest.raises(StorageError, match="SAS token") as raised:
        expiry.require_current(*opened(ending(hours)))
    assert raised.value.fields == {
        "source": WASBS,
        "secret": "azure/lake-sas",
        "ended_at": f"{NOW + timedelta(hours=hours):%Y-%m-%d %H:%M:%S} UTC",
    }
    assert "secret%" not in str(raised.value)
    assert "put a new token into the secret azure/lake-sas" in str(raised.value)


def test_a_running_query_is_told_once_an_hour_of_each_token(clock, caplog):
    for monotonic, hours in ((0, 2), (60, 2), (3599, 2), (3600, 2), (3700, 1), (3800, 30), (3900, -1)):
        clock["monotonic"] = 50.0 + monotonic
        expiry.remind(*opened(ending(hours)))
    verbs = [("ended" if " ended at " in message else "ends") for message in caplog.messages]
    assert verbs == ["ends", "ends", "ends", "ended"]


@pytest.mark.parametrize(
    "given",
    [
        {"source": "s3a://b/x", "access_key": "{{secrets/s/a}}", "secret_key": "{{secrets/s/b}}"},
        {"source": WASBS, "account_key": "{{secrets/s/a}}"},
    ],
)
def test_keys_tell_no_end(given, caplog):
    expiry.require_current(*opened("a2V5", **{"sas_token": None} | given))
    assert caplog.messages == []
