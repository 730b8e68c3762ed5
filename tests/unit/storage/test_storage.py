import re
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from topiclake.config.storage import StorageSettings
from topiclake.delta import log_store
from topiclake.errors import PlatformError, StorageError
from topiclake.storage import mount
from topiclake.storage.access import hadoop_settings
from topiclake.storage.failures import refusal
from workbench.dbutils import DBUtils

WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
TOKEN = "sv=2022&sig=very%2Fsecret%3D"
SAS_KEY = "fs.azure.sas.raw.account.blob.core.windows.net"
OTHERS = {"account_key": "YWNjb3VudA=="}
RENEWED = "fs.topiclake.renewed.account.blob.core.windows.net"


class FakeDbutils:
    """dbutils.fs with mounts, as Databricks has them: nothing checks a source but the caller."""

    def __init__(self, mounts=None):
        self.mounted = dict(mounts or {})
        self.calls = []
        self.is_listed = True
        self.fs = SimpleNamespace(
            mounts=self._mounts, mount=self._mount, updateMount=self._update, ls=self._list
        )

    def _mounts(self):
        return [SimpleNamespace(mountPoint=point, source=source) for point, source in self.mounted.items()]

    def _mount(self, source, mount_point, extra_configs):
        self.calls.append((source, mount_point, extra_configs))
        self.mounted[mount_point] = source
        return True

    def _update(self, source, mount_point, extra_configs):
        assert mount_point in self.mounted
        return self._mount(source, mount_point, extra_configs)

    def _list(self, folder):
        if not self.is_listed:
            raise RuntimeError(f"{folder}: 403")
        return []


def settings(source="file:///lake", mount_point="/mnt/lake", token=None, **more):
    return StorageSettings.model_validate(
        {"source": source, "mount_point": mount_point, "sas_token": token and "{{secrets/s/sas}}"} | more,
        context={"secrets": lambda _scope, key: token if key == "sas" else OTHERS.get(key, f"{key}'s value")},
    )


@pytest.fixture(autouse=True)
def _nothing_is_known_of_mounts(monkeypatch):
    monkeypatch.setattr(mount, "_marks", {})


@pytest.fixture
def given(monkeypatch):
    """Let the process remember a `dbutils` with mounts, as `mount` does."""
    return lambda mounts: monkeypatch.setattr(mount, "_dbutils", FakeDbutils(mounts))


@pytest.fixture
def on_databricks(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")


# Mounting


def test_what_is_not_mounted_is_mounted_without_settings_for_a_folder():
    dbutils = FakeDbutils({"/mnt/other": "file:///other"})
    mount.mount(dbutils, settings())
    assert dbutils.calls == [("file:///lake", "/mnt/lake", {})]


@pytest.mark.parametrize("mounted", ["file:///lake", "file:///lake/"])
def test_what_is_mounted_already_is_not_mounted_again(mounted):
    dbutils = FakeDbutils({"/mnt/lake": mounted})
    mount.mount(dbutils, settings())
    assert dbutils.calls == []


def test_mounting_twice_mounts_once():
    dbutils = FakeDbutils()
    mount.mount(dbutils, settings(WASBS, token=TOKEN))
    mount.mount(dbutils, settings(WASBS, token=TOKEN))
    assert len(dbutils.calls) == 1


def test_a_mount_whose_token_was_renewed_is_updated_once():
    dbutils = FakeDbutils()
    for token in (TOKEN, TOKEN, "another", "another"):
        mount.mount(dbutils, settings(WASBS, token=token))
    assert [configs for _, _, configs in dbutils.calls] == [{SAS_KEY: TOKEN}, {SAS_KEY: "another"}]


def test_a_token_that_has_ended_is_refused_and_not_mounted():
    dbutils = FakeDbutils()
    with pytest.raises(StorageError, match="ended at 2020-01-01 00:00:00 UTC"):
        mount.mount(dbutils, settings(WASBS, token="se=2020-01-01&sig=x"))
    assert (dbutils.calls, dbutils.mounted) == ([], {})


@pytest.mark.parametrize(
    ("is_listed", "session", "updates"),
    [
        (True, {}, 0),
        (False, {}, 1),
        # The workbench's session has what is mounted, and its mounts cannot be listed.
        (False, {SAS_KEY: TOKEN}, 0),
        (True, {SAS_KEY: "the one before"}, 1),
    ],
)
def test_a_mount_of_another_process_is_updated_where_its_token_is_another_one(is_listed, session, updates):
    dbutils, spark = FakeDbutils({"/mnt/lake": WASBS}), FakeSpark()
    dbutils.is_listed = is_listed
    spark.given.update(session)
    mount.mount(dbutils, settings(WASBS, token=TOKEN), spark)
    assert dbutils.calls == [(WASBS, "/mnt/lake", {SAS_KEY: TOKEN})] * updates
    # Found to work, it is known from then on.
    spark.given.clear()
    mount.mount(dbutils, settings(WASBS, token=TOKEN), spark)
    assert len(dbutils.calls) <= max(updates, 1)


def test_a_mount_is_used_without_its_secret_and_nothing_is_mounted_without(caplog):
    def away(_scope, _key):
        raise RuntimeError(f"no permission; {TOKEN}")

    secret = {"source": WASBS, "mount_point": "/mnt/lake", "sas_token": "{{secrets/s/sas}}"}
    unread = StorageSettings.model_validate(secret, context={"secrets": away})
    dbutils = FakeDbutils({"/mnt/lake": WASBS})
    mount.mount(dbutils, unread)
    assert dbutils.calls == []
    assert caplog.messages == ["/mnt/lake is used as it is mounted: RuntimeError of the platform"]
    with pytest.raises(RuntimeError):
        mount.mount(FakeDbutils(), unread)


class MountedMeanwhile(FakeDbutils):
    """Another run is faster, with a source of its own."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def _mount(self, source, mount_point, extra_configs):
        if mount_point in self.mounted:
            return super()._mount(source, mount_point, extra_configs)
        self.mounted[mount_point] = self.source
        raise RuntimeError("Directory already mounted")


def test_of_two_runs_that_mount_at_once_both_go_on():
    dbutils = MountedMeanwhile(WASBS)
    dbutils.is_listed = False
    mount.mount(dbutils, settings(WASBS, token=TOKEN))
    assert dbutils.calls == [(WASBS, "/mnt/lake", {SAS_KEY: TOKEN})], "the other's token may be another one"


def test_of_two_runs_that_mount_other_sources_at_once_one_is_refused():
    with pytest.raises(StorageError, match="is a mount of") as raised:
        mount.mount(MountedMeanwhile("file:///other"), settings(WASBS, token=TOKEN))
    assert raised.value.fields == {"mount_point": "/mnt/lake", "mounted": "file:///other", "source": WASBS}


@pytest.mark.parametrize("mounted", ["file:///lakes", "file:///lake/sub", WASBS])
def test_a_mount_of_something_else_is_refused_and_left_alone(mounted):
    dbutils = FakeDbutils({"/mnt/lake": mounted})
    with pytest.raises(StorageError) as raised:
        mount.mount(dbutils, settings())
    assert raised.value.fields == {"mount_point": "/mnt/lake", "mounted": mounted, "source": "file:///lake"}
    assert 'dbutils.fs.unmount("/mnt/lake")' in raised.value.remedy
    assert (dbutils.calls, dbutils.mounted) == ([], {"/mnt/lake": mounted})


@pytest.fixture
def workbench(tmp_path):
    return DBUtils(tmp_path / "home", tmp_path / "project")


@pytest.mark.parametrize("name", ["lake", "my lake", "50%25", "link"])
@pytest.mark.parametrize("before", ["", "file:", "file://"])
def test_a_folder_is_the_one_that_is_mounted_however_it_is_written(tmp_path, workbench, before, name):
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    (tmp_path / "lake").mkdir()
    for _ in range(2):
        mount.mount(workbench, settings(f"{before}{tmp_path}/{name}"))
    (mounted,) = workbench.fs.mounts()
    with pytest.raises(StorageError, match="is a mount of"):
        mount.mount(workbench, settings(f"{before}{tmp_path}/{name}s"))
    assert workbench.fs.mounts() == [mounted]


def test_a_percent_sign_is_one_where_no_address_is_written(tmp_path, workbench):
    plain = settings(f"{tmp_path}/50%25", mounted=False)
    mount.mount(workbench, settings(f"{tmp_path}/50%25"))
    as_mounted = mount.resolve(settings(), "/mnt/lake/t")
    assert mount.resolve(plain, "/mnt/lake/t") == as_mounted == f"file:{tmp_path}/50%25/t"


@pytest.mark.parametrize("token", [TOKEN, "?" + TOKEN])
def test_a_container_is_mounted_with_its_token(token):
    dbutils = FakeDbutils()
    mount.mount(dbutils, settings(WASBS, token=token))
    configs = {"fs.azure.sas.raw.account.blob.core.windows.net": TOKEN}
    assert dbutils.calls == [(WASBS, "/mnt/lake", configs)]


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("wasbs://c@a.blob.core.windows.net", "fs.azure.sas.c.a.blob.core.windows.net"),
        ("wasbs://c@a.blob.core.windows.net/", "fs.azure.sas.c.a.blob.core.windows.net"),
        ("wasb://c-1@a9.blob.core.windows.net/x/y", "fs.azure.sas.c-1.a9.blob.core.windows.net"),
        ("wasbs://c@a.blob.core.chinacloudapi.cn/x", "fs.azure.sas.c.a.blob.core.chinacloudapi.cn"),
        ("wasbs://c@devstoreaccount1/x", "fs.azure.sas.c.devstoreaccount1"),
    ],
)
def test_the_setting_of_a_token_names_container_and_host(source, key):
    assert hadoop_settings(settings(source, token=TOKEN)) == {key: TOKEN}


@pytest.mark.parametrize(
    "source",
    [
        "ftp://h/x",
        "wasbs://container/x",
        "wasbs://@a/x",
        "lake",
        "s3:/b/x",
        "s3a://key:secret@b/x",
        "/Volumes/a/b",
    ],
)
def test_a_source_of_another_form_is_refused_with_those_allowed(source):
    with pytest.raises(ValidationError) as raised:
        settings(source, token=TOKEN)
    for allowed in ("file:///", "/Volumes/<catalog>", "wasbs://", "abfss://", "s3a://"):
        assert allowed in str(raised.value)


@pytest.mark.parametrize(
    "bucket", ["a_b", "logs.2024", "a.2024-x", "-a", "a-", "a..b", "a b", "ü", "a%41", "."]
)
def test_a_bucket_that_is_no_host_to_hadoop_is_refused_by_name(bucket):
    with pytest.raises(ValidationError, match=f"Hadoop opens no bucket {re.escape(bucket)}: "):
        settings(f"s3a://{bucket}/x")


@pytest.mark.parametrize("bucket", ["b", "B", "123", "1a", "a.1b.c", "a-1", "a.b-1", "2024-lake", "a--b"])
def test_a_bucket_that_is_a_host_to_hadoop_is_taken(bucket):
    assert settings(f"s3a://{bucket}").kind == "s3a"


@pytest.mark.parametrize(
    "source",
    ["file:///a/../b", "file:///a/%2e%2E/b", "s3a://b/..", "wasbs://c@a/x/../y", "/Volumes/a/b/c/.."],
)
def test_a_source_that_leads_out_of_itself_is_refused(source):
    with pytest.raises(ValidationError, match=r"must not hold `\.\.`"):
        settings(source, token=TOKEN)


KEY, SECRET, SESSION = (
    {name: f"{{{{secrets/s/{name}}}}}"} for name in ("access_key", "secret_key", "session_token")
)
ACCOUNT_KEY = {"account_key": "{{secrets/s/account_key}}"}
OAUTH = {"oauth": {"tenant_id": "t-1", "client_id": "c-1", "client_secret": "{{secrets/s/client}}"}}
ABFSS = "abfss://raw@account.dfs.core.windows.net/gps"


@pytest.mark.parametrize(
    ("source", "given", "allowed"),
    [
        (WASBS, {"sas_token": "{{secrets/s/sas}}"} | ACCOUNT_KEY, "given: account_key and sas_token"),
        (
            ABFSS,
            OAUTH | ACCOUNT_KEY,
            "or account_key, or oauth; given: account_key and oauth",
        ),
        (
            "s3a://b/x",
            KEY,
            "takes none, or access_key and secret_key, or access_key and secret_key and",
        ),
        ("s3a://b/x", SESSION, "given: session_token"),
    ],
)
def test_credentials_that_do_not_open_a_source_are_refused_with_those_that_do(source, given, allowed):
    with pytest.raises(ValidationError, match=allowed):
        settings(source, **given)


@pytest.mark.parametrize(
    ("source", "given", "needed"),
    [
        (WASBS, {}, "sas_token, or account_key"),
        (WASBS, OAUTH, "sas_token, or account_key"),
        (ABFSS, {}, "oauth"),
    ],
)
def test_a_container_that_is_mounted_already_needs_no_credential_and_another_one_does(source, given, needed):
    dbutils = FakeDbutils({"/mnt/lake": source})
    mount.mount(dbutils, settings(source, **given))
    with pytest.raises(StorageError, match=f"needs .*{needed}") as raised:
        mount.mount(FakeDbutils(), settings(source, **given))
    assert raised.value.fields == {"source": source}


def test_credentials_for_other_sources_are_left_alone():
    assert hadoop_settings(settings("file:///lake", token=TOKEN, **ACCOUNT_KEY)) == {}


#: Databricks' own; Hadoop has none of that name, and takes the one it has.
FIXED = "org.apache.hadoop.fs.azurebfs.sas.FixedSASTokenProvider"
HOST = "account.dfs.core.windows.net"
FLAT = "account.blob.core.windows.net"
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
DEFAULT = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        (WASBS, ACCOUNT_KEY, {"fs.azure.account.key.account.blob.core.windows.net": "YWNjb3VudA=="}),
        (
            ABFSS,
            ACCOUNT_KEY,
            {
                f"fs.azure.account.auth.type.{HOST}": "SharedKey",
                f"fs.azure.account.key.{HOST}": "YWNjb3VudA==",
            },
        ),
        (
            ABFSS,
            {"sas_token": "{{secrets/s/other}}"},
            {
                f"fs.azure.account.auth.type.{HOST}": "SAS",
                f"fs.azure.sas.fixed.token.{HOST}": "other's value",
            },
        ),
        (
            f"abfss://raw@{FLAT}/gps",
            ACCOUNT_KEY,
            {
                f"fs.azure.account.auth.type.{FLAT}": "SharedKey",
                f"fs.azure.account.key.{FLAT}": "YWNjb3VudA==",
                f"fs.azure.account.hns.enabled.{FLAT}": "false",
            },
        ),
        (
            ABFSS,
            OAUTH,
            {
                f"fs.azure.account.auth.type.{HOST}": "OAuth",
                f"fs.azure.account.oauth.provider.type.{HOST}": (
                    "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
                ),
                f"fs.azure.account.oauth2.client.id.{HOST}": "c-1",
                f"fs.azure.account.oauth2.client.secret.{HOST}": "client's value",
                f"fs.azure.account.oauth2.client.endpoint.{HOST}": (
                    "https://login.microsoftonline.com/t-1/oauth2/token"
                ),
            },
        ),
        (
            "s3a://raw/gps",
            {"region": "eu-central-1"},
            {
                "fs.s3a.bucket.raw.aws.credentials.provider": DEFAULT,
                "fs.s3a.bucket.raw.endpoint.region": "eu-central-1",
                "fs.s3a.bucket.raw.path.style.access": "false",
            },
        ),
        (
            "s3a://raw",
            KEY | SECRET | {"endpoint": "http://127.0.0.1:9000", "path_style_access": True},
            {
                "fs.s3a.bucket.raw.access.key": "access_key's value",
                "fs.s3a.bucket.raw.aws.credentials.provider": SIMPLE,
                "fs.s3a.bucket.raw.endpoint": "http://127.0.0.1:9000",
                "fs.s3a.bucket.raw.path.style.access": "true",
                "fs.s3a.bucket.raw.secret.key": "secret_key's value",
            },
        ),
        (
            "s3a://raw/gps",
            KEY | SECRET | SESSION,
            {
                "fs.s3a.bucket.raw.access.key": "access_key's value",
                "fs.s3a.bucket.raw.aws.credentials.provider": TEMPORARY,
                "fs.s3a.bucket.raw.path.style.access": "false",
                "fs.s3a.bucket.raw.secret.key": "secret_key's value",
                "fs.s3a.bucket.raw.session.token": "session_token's value",
            },
        ),
        ("/Volumes/main/raw/lake", {}, {}),
    ],
)
def test_hadoop_is_told_what_opens_a_source(source, given, expected):
    assert hadoop_settings(settings(source, **given)) == expected


def test_databricks_is_told_its_own_class_for_a_fixed_token(monkeypatch):
    abfss = settings(ABFSS, sas_token="{{secrets/s/other}}")
    assert f"fs.azure.sas.token.provider.type.{HOST}" not in hadoop_settings(abfss)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    assert hadoop_settings(abfss)[f"fs.azure.sas.token.provider.type.{HOST}"] == FIXED


class FakeSpark:
    """A session's settings."""

    def __init__(self):
        self.given = {}
        self.conf = SimpleNamespace(
            get=self.given.get, set=self.given.__setitem__, unset=lambda key: self.given.pop(key, None)
        )


def test_a_source_that_is_not_to_be_mounted_is_opened_for_the_session():
    spark, dbutils, raw = FakeSpark(), FakeDbutils(), settings(WASBS, token=TOKEN, mounted=False)
    mount.mount(dbutils, raw, spark)
    assert spark.given == {SAS_KEY: TOKEN, RENEWED: spark.given[RENEWED]}
    assert dbutils.calls == []
    assert mount.resolve(raw, "/mnt/lake/gps") == f"{WASBS}/gps"
    with pytest.raises(StorageError, match="no session") as raised:
        mount.mount(dbutils, raw)
    assert raised.value.fields == {"source": WASBS}


@pytest.mark.parametrize("is_known", [False, True])
def test_an_account_key_takes_the_place_of_the_token_that_opened_the_container(is_known):
    """Hadoop would go on with the token."""
    spark, of_another = FakeSpark(), "fs.azure.sas.clean.account.blob.core.windows.net"
    spark.given[of_another] = TOKEN
    mount.mount(FakeDbutils(), settings(WASBS, token=TOKEN, mounted=False), spark)
    first = spark.given[RENEWED]
    of_key = settings(WASBS, mounted=False, **ACCOUNT_KEY)
    if is_known:
        spark.given.update(hadoop_settings(of_key))
    mount.mount(FakeDbutils(), of_key, spark)
    assert int(spark.given[RENEWED]) > int(first)
    assert spark.given == hadoop_settings(of_key) | {of_another: TOKEN, RENEWED: spark.given[RENEWED]}


def test_a_token_leaves_the_accounts_key_to_other_containers():
    spark = FakeSpark()
    other = settings(WASBS.replace("raw", "clean"), mounted=False, **ACCOUNT_KEY)
    mount.mount(FakeDbutils(), other, spark)
    mount.mount(FakeDbutils(), settings(WASBS, token=TOKEN, mounted=False), spark)
    assert spark.given.items() > (hadoop_settings(other) | {SAS_KEY: TOKEN}).items()


@pytest.mark.usefixtures("on_databricks")
def test_a_volume_is_never_mounted_and_stands_behind_the_mount_point():
    dbutils, volume = FakeDbutils(), settings("/Volumes/main/raw/lake/")
    mount.mount(dbutils, volume)
    assert dbutils.calls == []
    assert mount.resolve(volume, "/mnt/lake/delta/gps") == "/Volumes/main/raw/lake/delta/gps"
    assert mount.resolve(volume, "/mnt/lake") == "/Volumes/main/raw/lake"


@pytest.mark.parametrize(
    "path",
    ["/mnt/data/../x", "s3a://b/../x", "/Volumes/a/b/c/..", "file:///a/../b", "file:///a/.%2E/b"],
)
def test_a_path_that_leads_out_of_its_folder_is_refused(given, path):
    given(MOUNTED)
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), path)
    assert raised.value.fields == {"path": path, "reason": "leads_out"}


@pytest.mark.parametrize("path", ["s3:/b/x", "ftp://h/x", "s3a:///x", "file://host/x", "s3a://id:pw@b/x"])
def test_an_address_of_another_form_is_refused_with_those_allowed_and_tells_no_login(given, path):
    given(MOUNTED)
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), path)
    assert raised.value.fields == {"path": path.replace("id:pw", "[REDACTED]"), "reason": "form"}
    assert "id:pw" not in str(raised.value)
    assert "s3a://<bucket>/<folder>" in raised.value.remedy


#: As Hadoop tells what S3 answers with a body; its wording: "Error responses" of the Amazon S3 API reference.
SKEWED = """An error occurred while calling o1.save.
: java.nio.file.AccessDeniedException: s3a://b/x: PUT 0-byte object on x: S3Exception: The difference \
between the request time and the current time is too large. (Service: S3, Status Code: 403)\
:RequestTimeTooSkewed
\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:270)
"""


def test_a_clock_that_is_wrong_is_told_with_its_time_and_is_no_wrong_key():
    refused = refusal(settings("s3a://b/x", **KEY, **SECRET), "s3a://b/x/table", Exception(SKEWED))
    assert re.match(r"s3a://b/x refuses this machine's clock, \d{4}-\d\d-\d\d [\d:]+ UTC \(", refused.cause)
    assert (refused.remedy, "\n" in refused.cause) == ("set the clock", False)


@pytest.mark.parametrize(
    ("path", "source", "remedy"),
    [
        ("s3a://b/table", "s3a://b/x", "renew the secret s/access_key, s/secret_key"),
        ("s3a://other/table", "s3a://other/table", "use a path in s3a://b/x, or give the machine "),
        ("/mnt/lake/table", "s3a://b/x", "renew the secret s/access_key, s/secret_key"),
    ],
)
def test_a_refusal_names_the_bucket_that_refuses_and_what_would_open_it(path, source, remedy):
    refused = refusal(
        settings("s3a://b/x", **KEY, **SECRET), path, Exception("(Service: S3, Status Code: 403)")
    )
    assert refused.cause == f"{source} refuses the access key ((Service: S3, Status Code: 403))"
    assert refused.remedy.startswith(remedy)


# Local folders


@pytest.mark.parametrize("before", ["", "file:"])
def test_a_plain_path_is_a_local_folder_to_the_guard_of_deltas_log(before):
    plain, spark = f"{before}/srv/lake/gps", FakeSpark()
    with pytest.raises(PlatformError, match=r"set spark\.delta\.logStore\.file\.impl to"):
        log_store.require_log_store(spark, plain)
    spark.given["spark.delta.logStore.file.impl"] = "io.topiclake.store.LinkedLogStore"
    log_store.require_log_store(spark, plain)


@pytest.mark.parametrize("path", ["/mnt/lake/gps", "/Volumes/a/b/c", "/tables/gps", "file:/srv/lake"])
def test_databricks_guards_its_log_by_itself(path, on_databricks):
    log_store.require_log_store(FakeSpark(), path)


@pytest.mark.parametrize("before", ["", "file:"])
def test_a_local_folder_that_cannot_be_made_is_refused_and_another_one_passes(tmp_path, before):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError) as raised:
        mount.require_writable(f"{before}{tmp_path}/file/table")
    assert raised.value.fields == {
        "path": f"{before}{tmp_path}/file/table",
        "folder": f"{tmp_path}/file",
        "reason": "no_folder",
    }
    mount.require_writable(f"{before}{tmp_path}/lake/table")
    mount.require_writable("s3a://b/x")


def test_a_plain_path_is_no_folder_of_the_machine_on_databricks(tmp_path, on_databricks):
    (tmp_path / "file").write_text("no folder")
    mount.require_writable(f"{tmp_path}/file/table")


# Resolving


MOUNTED = {"/mnt/data": "file:///srv/data/", "/mnt/datalake": WASBS, "/mnt/azure": f"{WASBS}/"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/data", "file:/srv/data"),
        ("/mnt/data/delta/gps", "file:/srv/data/delta/gps"),
        ("/mnt/datalake", WASBS),
        ("/mnt/datalake/delta/gps", f"{WASBS}/delta/gps"),
        ("/mnt/azure/gps", f"{WASBS}/gps"),
        ("/Volumes/main/gps/t", "/Volumes/main/gps/t"),
        ("/mntx/data", "/mntx/data"),
        ("/tmp/mnt/data", "/tmp/mnt/data"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("dbfs:/mnt/data", "file:/srv/data"),
        ("dbfs:///mnt/data/gps", "file:/srv/data/gps"),
    ],
)
def test_a_path_below_a_mount_point_becomes_its_source(given, path, expected):
    given(MOUNTED)
    assert mount.resolve(settings(), path) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_a_mount_point_that_begins_like_another_is_not_that_one(given, order):
    given(list(MOUNTED.items())[::order])
    assert mount.resolve(settings(), "/mnt/datalake/x") == f"{WASBS}/x"
    assert mount.resolve(settings(), "/mnt/data/x") == "file:/srv/data/x"


def test_a_folder_is_written_as_hadoop_writes_it(given):
    given({"/mnt/a": "file:///home/x%20y", "/mnt/b": "/plain/folder"})
    assert mount.resolve(settings(), "/mnt/a/t") == "file:/home/x y/t"
    assert mount.resolve(settings(), "/mnt/b/t") == "file:/plain/folder/t"


@pytest.mark.parametrize("version", ["", "18.0"])
def test_a_folder_that_is_given_as_an_address_is_written_so_too(given, version, monkeypatch):
    """Delta takes file:///x and file:/x for two locations, and refuses to create the table."""
    monkeypatch.setattr("topiclake.storage.mount.is_databricks", lambda: bool(version))
    given(MOUNTED)
    assert mount.resolve(settings(), "file:///home/x%20y/t") == "file:/home/x y/t"
    assert mount.resolve(settings(), "file:/home/t") == "file:/home/t"


def test_a_percent_sign_in_a_container_stays(given):
    given({"/mnt/a": f"{WASBS}/x%20y"})
    assert mount.resolve(settings(), "/mnt/a/t") == f"{WASBS}/x%20y/t"


@pytest.mark.parametrize("path", ["dbfs:/tmp/x", "dbfs:/", "dbfs:tmp"])
def test_a_path_of_databricks_is_refused_elsewhere(given, path):
    given(MOUNTED)
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), path)
    assert raised.value.fields["path"] == path


@pytest.mark.parametrize("path", ["/mnt/dat", "/mnt/data2/x", "/mnt/", "/mnt/other/x"])
def test_a_path_below_no_mount_is_named_with_the_mounts(given, path):
    given(MOUNTED)
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), path)
    assert raised.value.fields == {"path": path, "mounted": ("/mnt/azure", "/mnt/data", "/mnt/datalake")}
    assert "/mnt/azure, /mnt/data, /mnt/datalake" in raised.value.cause


def test_without_any_mount_the_error_says_nothing_is_mounted(given):
    given({})
    with pytest.raises(StorageError, match="nothing; try: mount first") as raised:
        mount.resolve(settings(), "/mnt/data/x")
    assert raised.value.fields == {"path": "/mnt/data/x", "mounted": ()}


def test_a_process_that_mounted_nothing_takes_the_configured_source_and_no_other():
    assert mount.resolve(settings(), "/mnt/lake/gps") == "file:/lake/gps"
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), "/mnt/data/x")
    assert raised.value.fields == {"path": "/mnt/data/x", "mounted": ()}


def test_paths_are_looked_up_in_what_was_mounted_last():
    mount.mount(FakeDbutils({"/mnt/data": "file:///srv/data"}), settings())
    assert mount.resolve(settings(), "/mnt/data/x") == "file:/srv/data/x"
    mount.mount(None, settings(mounted=False), FakeSpark())
    assert mount.resolve(settings(), "/mnt/data/x") == "file:/srv/data/x"
    mount.mount(FakeDbutils(), settings())
    with pytest.raises(StorageError):
        mount.resolve(settings(), "/mnt/data/x")


def test_without_dbutils_nothing_is_mounted_and_the_error_says_what_opens_the_source():
    with pytest.raises(StorageError) as raised:
        mount.mount(None, settings(WASBS, token=TOKEN))
    assert raised.value.fields == {"mount_point": "/mnt/lake", "source": WASBS}
    assert "storage.mounted=false" in raised.value.remedy
    assert TOKEN not in str(raised.value)


@pytest.mark.usefixtures("on_databricks")
@pytest.mark.parametrize("path", ["/mnt/data/x", "/mnt/unmounted/x", "/Volumes/a/b/c", "s3a://b/x"])
def test_databricks_resolves_paths_by_itself(given, path):
    given(MOUNTED)
    assert mount.resolve(settings(), path) == path


# Tables by name, external locations, and s3://


def test_the_name_of_a_table_needs_no_mount_and_is_no_path(given):
    given({})
    assert mount.resolve_table(settings(), "lake.raw.gps") == "lake.raw.gps"
    with pytest.raises(StorageError) as raised:
        mount.resolve(settings(), "lake.raw.gps")
    assert raised.value.fields == {"path": "lake.raw.gps", "reason": "name"}


@pytest.mark.usefixtures("on_databricks")
@pytest.mark.parametrize(
    "path", ["/Volumes/main/raw/lake/gps", "dbfs:/Volumes/main/raw/lake/gps", "/mnt/lake/gps"]
)
def test_a_table_in_a_volume_is_refused_and_a_checkpoint_is_not(path):
    volume = settings("/Volumes/main/raw/lake")
    assert mount.resolve(volume, path).endswith("/Volumes/main/raw/lake/gps")
    with pytest.raises(StorageError) as raised:
        mount.resolve_table(volume, path)
    assert (raised.value.fields["reason"], raised.value.fields["path"]) == ("volume", path)
    assert "table: <catalog>.<schema>.<table>" in raised.value.remedy


def test_outside_databricks_s3_is_opened_as_s3a(given):
    given({"/mnt/lake": "s3a://raw/gps"})
    lake = settings("s3://raw/gps", **KEY, **SECRET)
    assert lake.kind == "s3a"
    assert hadoop_settings(lake)["fs.s3a.bucket.raw.access.key"] == "access_key's value"
    assert mount.resolve(lake, "s3://raw/gps/t") == "s3a://raw/gps/t"
    assert mount.resolve(lake, "/mnt/lake/t") == "s3a://raw/gps/t"
    opened = settings("s3://raw/gps", mounted=False)
    assert mount.resolve(opened, "/mnt/lake/t") == "s3a://raw/gps/t"


def test_a_mount_of_s3_is_the_same_as_one_of_s3a():
    dbutils = FakeDbutils({"/mnt/lake": "s3a://raw/gps"})
    mount.mount(dbutils, settings("s3://raw/gps"))
    assert [source for source, *_ in dbutils.calls] in ([], ["s3://raw/gps"])


@pytest.mark.usefixtures("on_databricks")
@pytest.mark.parametrize("source", ["s3://raw/gps", "s3a://raw/gps", ABFSS])
def test_an_external_location_needs_no_credential_and_gets_no_settings_on_databricks(source):
    spark, location = FakeSpark(), settings(source, mounted=False)
    assert hadoop_settings(location) == {}
    mount.mount(FakeDbutils(), location, spark)
    assert spark.given == {}
    assert mount.resolve(location, "/mnt/lake/gps") == f"{source}/gps"


def test_outside_databricks_abfss_still_needs_a_credential():
    with pytest.raises(StorageError):
        hadoop_settings(settings(ABFSS))


@pytest.mark.parametrize("location", ["lake.raw.my-table", "a.b.c.d", "lake.raw.2024", "lake.größe"])
def test_a_location_that_is_almost_a_name_is_refused(location):
    with pytest.raises(StorageError) as raised:
        mount.resolve_table(settings(), location)
    assert raised.value.fields == {"path": location, "reason": "name"}


@pytest.mark.parametrize("path", ["./raw.gps", "data/raw.gps", "dbfs.gps/x"])
def test_a_folder_with_a_dot_is_a_path(path):
    assert mount.resolve_table(settings(), path) == path
