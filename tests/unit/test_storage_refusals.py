"""What a store's answer is told as; the texts are those of Spark 4.1 with a store that answered so."""

import pytest

from topiclake.errors import StorageError
from topiclake.storage_access import hadoop_settings
from topiclake.storage_refusals import refusal
from topiclake.storage_settings import StorageSettings

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


def told(storage, text, path=None):
    return str(refusal(storage, path or f"{storage.source}/table", Exception(text)))


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
    assert told(storage, s3_answer(400, code, message)) == (
        "s3a://b/x refuses the session token, which has ended or is not that of the key "
        f"({message} (Service: S3, Status Code: 400, Request ID: [REDACTED])); "
        "try: renew the secret s/access_key, s/secret_key, s/session_token"
    )


def test_another_400_is_told_as_what_it_says():
    said = told(settings(S3, *KEYS), s3_answer(400, "InvalidArgument", "Argument is wrong"))
    assert said.startswith("s3a://b/x/table cannot be used: Argument is wrong (Service: S3")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
        ("null", "Bad Request"),
        ("null", ""),
    ],
)
def test_a_400_that_names_the_region_or_nothing_is_told_as_a_wrong_region(code, message):
    said = told(settings(S3, *KEYS), s3_answer(400, code, message))
    assert said.startswith("s3a://b/x refuses the region of this machine (")
    assert said.endswith("; try: mend storage.region")


def test_a_400_that_names_nothing_may_be_the_session_tokens_where_there_is_one():
    said = told(settings(S3, *KEYS, "session_token"), s3_answer(400, "null", "Bad Request"))
    assert said.startswith("s3a://b/x refuses the region of this machine, or the session token (Bad Request")
    assert said.endswith(
        "; try: mend storage.region, or renew the secret "
        + ", ".join(f"s/{name}" for name in (*KEYS, "session_token"))
    )


@pytest.mark.parametrize(
    "path", ["s3a://b/x/403/t", "s3a://b/x/401", "s3a://b/x/ReadOnly/t", "s3a://b/x/status 403, b/t"]
)
def test_what_a_path_is_called_says_nothing_of_why_it_is_refused(path):
    assert told(settings(S3, *KEYS), AWAY.format(path=path), path).startswith("s3a://b/x cannot be reached (")
    refused = s3_answer(403, "null", "Forbidden", "AccessDeniedException", path)
    assert told(settings(S3, *KEYS), refused, path).startswith("s3a://b/x refuses the access key (Forbidden")


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
    said = told(settings(S3, *KEYS), f": org.x.UnsupportedException: No FileSystem for {path}", path)
    assert said == f"{shown} cannot be used: No FileSystem for {shown}; try: mend the storage, or the path"


@pytest.mark.parametrize("message", ["Forbidden", "Server failed to authenticate the request. Make sure."])
def test_of_what_azure_answers_the_message_is_told_and_no_address(message):
    assert told(settings(ABFSS, "sas_token"), ABFS.format(message)) == (
        f"{ABFSS} refuses the SAS token ({message.rstrip('.')}, status 403); "
        "try: renew the secret s/sas_token"
    )


def test_a_clock_that_azure_refuses_is_told_and_is_no_wrong_key():
    said = told(
        settings(ABFSS, "account_key"),
        ABFS.format("Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT'"),
    )
    assert said.startswith(f"{ABFSS} refuses this machine's clock, ")
    assert said.endswith(
        "(Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT', status 403); try: set the clock"
    )


#: Hadoop's driver shows the key that it cannot read.
WRONG_KEY = """An error occurred while calling o325.text.
: Failure to initialize configuration for account.dfs.core.windows.net key ="{}": \
Invalid configuration value detected for fs.azure.account.key
\tat org.apache.hadoop.fs.azurebfs.services.SimpleKeyProvider.getStorageAccountKey(SimpleKeyProvider.java:53)
"""


@pytest.mark.parametrize("key", ["c2Vj!cmV0", 'c2"cmV0', "c2Vj\ncmV0", "=" * 400 + "cmV0"])
def test_a_key_that_hadoop_shows_is_not_told(key):
    said = told(settings(ABFSS, "account_key"), WRONG_KEY.format(key))
    assert said == (
        f"{ABFSS} cannot be opened: its account key is not base64; try: renew the secret s/account_key"
    )
    for other in (settings(S3), settings("file:///lake")):
        assert "cmV0" not in told(other, WRONG_KEY.format(key), "/lake/t")


def test_a_key_that_there_is_none_of_is_not_said_to_be_wrong():
    said = told(settings(WASBS, "sas_token"), WRONG_KEY.format("null"), f"{ABFSS}/table")
    assert said.startswith(f"{ABFSS}/table cannot be used: Failure to initialize")
    assert 'key ="null"' in said


@pytest.mark.parametrize("source", [ABFSS, WASBS])
@pytest.mark.parametrize("key", ["", "AAAA\n", "AAA", "AAAAA", "-_-_", "AA AA", "====", "AA=A", "kéyé"])
def test_a_key_that_is_not_base64_is_refused_before_hadoop_has_it(source, key):
    with pytest.raises(StorageError) as raised:
        hadoop_settings(settings(source, "account_key", account_key=key))
    assert str(raised.value) == (
        f"{source} cannot be opened: its account key, the secret s/account_key, is not base64; "
        "try: put the key into it as Azure shows it"
    )
    assert raised.value.__context__ is None or key not in str(raised.value.__context__) or not key


@pytest.mark.parametrize("source", [ABFSS, WASBS])
@pytest.mark.parametrize("key", ["AAAA", "c2VjcmV0Cg==", "a+/="])
def test_a_key_that_is_base64_is_handed_on(source, key):
    assert key in hadoop_settings(settings(source, "account_key", account_key=key)).values()
