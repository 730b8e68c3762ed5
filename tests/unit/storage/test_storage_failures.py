"""What a store's answer is told as; the texts are those of Spark 4.1 with a store that answered so."""

import pytest

from topiclake.config.storage import StorageSettings
from topiclake.errors import StorageError
from topiclake.storage.access import hadoop_settings
from topiclake.storage.failures import refusal

S3 = "s3a://b/x"
ABFSS = "abfss://raw@account.dfs.core.windows.net/gps"
WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
KEYS = ("access_key", "secret_key")


def settings(source, *names, **values):
    return StorageSettings.model_validate(
        {"source": source, "mount_point": "/mnt/lake"}
        | {name: f"{{{{secrets/s/{name}}}}}" for name in names},
        context={"secrets": lambda _scope, key: values[key]},
    )


def refused(storage, text, path=None):
    error = refusal(storage, path or f"{storage.source}/table", Exception(text))
    assert type(error) is StorageError
    return error


def message_of(storage, text, path=None):
    return str(refused(storage, text, path))


def s3_answer(status, code, message="", kind="AWSBadRequestException", place="s3a://b/x/table/_delta_log"):
    """Hadoop's words for what S3 answers; to HEAD it answers without a body, and so without a code."""
    answer = f"{message} (Service: S3, Status Code: {status}, Request ID: R1)"
    return f"""An error occurred while calling o132.load.
: org.apache.hadoop.fs.s3a.{kind}: getFileStatus on {place}: \
software.amazon.awssdk.services.s3.model.S3Exception: {answer}:{code}: {answer}
\tSuppressed: org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace of original
\t\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:403)
Caused by: software.amazon.awssdk.services.s3.model.S3Exception: {answer}
"""


AWAY = """An error occurred while calling o1.load.
: java.net.ConnectException: Call to {path} failed on connection exception: Connection refused
\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:401)
"""
ABFS = """An error occurred while calling o281.load.
: java.nio.file.AccessDeniedException: Operation failed: "{}", 403, HEAD, \
https://account.dfs.core.windows.net/raw/gps/table?upn=false&action=getStatus&timeout=90&sv=2022\
&se=2024-01-01&sp=rl&sig=XXXXXs, rId: 5f1
\tat org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem.checkException(AzureBlobFileSystem.java:1690)
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredToken", "The provided token has expired."),
        ("InvalidToken", "The provided token is malformed or otherwise invalid."),
    ],
)
def test_a_session_token_that_has_ended_is_told_and_is_no_wrong_region(code, message):
    storage = settings(S3, *KEYS, "session_token")
    error = refused(storage, s3_answer(400, code, message))
    assert error.fields == {
        "source": S3,
        "path": f"{S3}/table",
        "reason": "session_token",
        "detail": f"{message} (Service: S3, Status Code: 400, Request ID: [REDACTED])",
        "secrets": "s/access_key, s/secret_key, s/session_token",
    }
    assert error.remedy == "renew the secret s/access_key, s/secret_key, s/session_token"


def test_another_400_is_told_as_what_it_says():
    error = refused(settings(S3, *KEYS), s3_answer(400, "InvalidArgument", "Argument is wrong"))
    assert (error.fields["path"], error.fields["reason"]) == ("s3a://b/x/table", "unusable")
    assert error.fields["detail"].startswith("Argument is wrong (Service: S3")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
        ("null", "Bad Request"),
        ("null", ""),
    ],
)
def test_a_400_that_names_the_region_or_nothing_is_told_as_a_wrong_region(code, message):
    error = refused(settings(S3, *KEYS), s3_answer(400, code, message))
    assert (error.fields["source"], error.fields["reason"]) == (S3, "region")
    assert error.remedy == "correct storage.region"


def test_a_400_that_names_nothing_may_be_the_session_tokens_where_there_is_one():
    error = refused(settings(S3, *KEYS, "session_token"), s3_answer(400, "null", "Bad Request"))
    secrets = ", ".join(f"s/{name}" for name in (*KEYS, "session_token"))
    assert error.fields["source"] == S3
    assert error.fields["reason"] == "region_or_session_token"
    assert error.fields["detail"].startswith("Bad Request")
    assert error.fields["secrets"] == secrets
    assert error.remedy == f"correct storage.region, or renew the secret {secrets}"


@pytest.mark.parametrize(
    "path", ["s3a://b/x/403/t", "s3a://b/x/401", "s3a://b/x/ReadOnly/t", "s3a://b/x/status 403, b/t"]
)
def test_what_a_path_is_called_says_nothing_of_why_it_is_refused(path):
    away = refused(settings(S3, *KEYS), AWAY.format(path=path), path)
    assert (away.fields["source"], away.fields["reason"]) == (S3, "unreachable")
    answer = s3_answer(403, "null", "Forbidden", "AccessDeniedException", path)
    forbidden = refused(settings(S3, *KEYS), answer, path)
    assert (forbidden.fields["source"], forbidden.fields["reason"]) == (S3, "credential")
    assert forbidden.fields["detail"].startswith("Forbidden")
    assert "the access key" in forbidden.cause


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("gs://b/t", "gs://b/t"),
        ("s3://b/t", "s3://b/t"),
        ("wasbs://nohost/t", "wasbs://nohost/t"),
        ("s3a://id:pw@b/t", "s3a://[REDACTED]@b/t"),
        ("s3a://id:p/w@b/t", "s3a://[REDACTED]@b/t"),
    ],
)
def test_a_place_that_no_source_may_be_is_told_as_well(path, shown):
    error = refused(settings(S3, *KEYS), f": org.x.UnsupportedException: No FileSystem for {path}", path)
    assert error.fields == {
        "path": shown,
        "reason": "unusable",
        "detail": f"No FileSystem for {shown}",
    }
    assert "pw" not in str(error)
    assert "p/w" not in str(error)


@pytest.mark.parametrize("message", ["Forbidden", "Server failed to authenticate the request. Make sure."])
def test_of_what_azure_answers_the_message_is_told_and_no_address(message):
    error = refused(settings(ABFSS, "sas_token"), ABFS.format(message))
    assert error.fields == {
        "source": ABFSS,
        "path": f"{ABFSS}/table",
        "reason": "credential",
        "detail": f"{message.rstrip('.')}, status 403",
        "secrets": "s/sas_token",
    }
    assert "the SAS token" in error.cause
    assert "https:" not in str(error)
    assert error.remedy == "renew the secret s/sas_token"


def test_a_clock_that_azure_refuses_is_told_and_is_no_wrong_key():
    answer = "Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT'"
    error = refused(settings(ABFSS, "account_key"), ABFS.format(answer))
    assert (error.fields["source"], error.fields["reason"]) == (ABFSS, "clock")
    assert error.fields["detail"] == f"{answer}, status 403"
    assert error.remedy == "set the clock"


#: Hadoop's driver shows the key that it cannot read.
WRONG_KEY = """An error occurred while calling o325.text.
: Failure to initialize configuration for account.dfs.core.windows.net key ="{}": \
Invalid configuration value detected for fs.azure.account.key
\tat org.apache.hadoop.fs.azurebfs.services.SimpleKeyProvider.getStorageAccountKey(SimpleKeyProvider.java:53)
"""


@pytest.mark.parametrize("key", ["c2Vj!cmV0", 'c2"cmV0', "c2Vj\ncmV0", "=" * 400 + "cmV0"])
def test_a_key_that_hadoop_shows_is_not_told(key):
    error = refused(settings(ABFSS, "account_key"), WRONG_KEY.format(key))
    assert (error.fields["source"], error.fields["reason"]) == (ABFSS, "account_key_form")
    assert error.remedy == "renew the secret s/account_key"
    assert "cmV0" not in f"{error} {error.fields}"
    for other in (settings(S3), settings("file:///lake")):
        assert "cmV0" not in message_of(other, WRONG_KEY.format(key), "/lake/t")


def test_a_key_that_there_is_none_of_is_not_said_to_be_wrong():
    error = refused(settings(WASBS, "sas_token"), WRONG_KEY.format("null"), f"{ABFSS}/table")
    assert (error.fields["path"], error.fields["reason"]) == (f"{ABFSS}/table", "unusable")
    assert error.fields["detail"].startswith("Failure to initialize")
    assert 'key ="null"' in error.fields["detail"]


@pytest.mark.parametrize("source", [ABFSS, WASBS])
@pytest.mark.parametrize("key", ["", "AAAA\n", "AAA", "AAAAA", "-_-_", "AA AA", "====", "AA=A", "kéyé"])
def test_a_key_that_is_not_base64_is_refused_before_hadoop_has_it(source, key):
    with pytest.raises(StorageError) as raised:
        hadoop_settings(settings(source, "account_key", account_key=key))
    assert raised.value.fields == {"source": source, "secret": "s/account_key"}
    assert "is not base64" in raised.value.cause
    assert not key or key not in f"{raised.value} {raised.value.fields}"
    assert raised.value.__context__ is None or key not in str(raised.value.__context__) or not key


@pytest.mark.parametrize("source", [ABFSS, WASBS])
@pytest.mark.parametrize("key", ["AAAA", "c2VjcmV0Cg==", "a+/="])
def test_a_key_that_is_base64_is_handed_on(source, key):
    assert key in hadoop_settings(settings(source, "account_key", account_key=key)).values()


def test_an_error_of_a_named_table_blames_no_configured_store():
    answer = s3_answer(403, "null", "Forbidden", "AccessDeniedException", "s3a://managed/x")
    error = refused(settings(S3, *KEYS), answer, "lake.raw.gps")
    assert (error.fields["path"], error.fields["reason"]) == ("lake.raw.gps", "unusable")
