import html
import json
import shutil
import stat
import urllib.parse

import pytest
from pydantic import ValidationError

from tests.support.stand_in import stand_in
from topiclake.config.storage import StorageSettings
from topiclake.errors import ConfigError, StorageError
from workbench.dbutils import DBUtils, FileInfo, InputWidgetNotDefined, NotebookExit
from workbench.dbutils.mounts import MountInfo
from workbench.host.redaction import Redactor

TOKEN = "sv=2022&sig=very/secret+token"
SAS_KEY = "fs.azure.sas.raw.account.blob.core.windows.net"
WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
SECRET = "wJalr/bPx+Rfi"
LINK = "fs.viewfs.mounttable.default.link./mnt/raw"
RENEWED = "fs.topiclake.renewed.account.blob.core.windows.net"


class SparkConf:
    def __init__(self):
        self.conf, self.values = self, {}

    def get(self, key, default):
        return self.values.get(key, default)

    def set(self, key, value):
        self.values[key] = value

    def unset(self, key):
        self.values.pop(key, None)


@pytest.fixture
def make(tmp_path):
    def made(parameters=None, spark=None, redactor=None):
        return DBUtils(tmp_path / "home", tmp_path / "project", parameters, lambda: spark, redactor)

    return made


def test_a_parameter_of_the_run_wins_over_the_default(make):
    widgets = make({"topic": "other"}).widgets
    widgets.text("topic", "gps")
    widgets.combobox("mode", "a", ["a"])
    assert widgets.getAll() == {"topic": "other", "mode": "a"}


def test_a_parameter_of_the_run_without_a_widget_is_among_all_as_on_databricks(make):
    widgets = make({"devices": "3"}).widgets
    widgets.text("topic", "gps")
    assert widgets.getAll() == {"topic": "gps", "devices": "3"}


def test_an_undefined_widget_is_named_with_those_that_exist(make):
    widgets = make().widgets
    widgets.text("topic", "gps")
    with pytest.raises(InputWidgetNotDefined, match=r"'topics'.* 'topic'") as raised:
        widgets.get("topics")
    assert raised.value.fields == {"widget": "topics", "allowed": ("topic",)}
    assert widgets.getArgument("topics", "x") == "x"
    widgets.removeAll()
    with pytest.raises(InputWidgetNotDefined):
        widgets.remove("topic")


def test_a_default_outside_the_choices_is_refused(make):
    with pytest.raises(ConfigError, match=r"'c'.* 'a', 'b'") as raised:
        make().widgets.dropdown("mode", "c", ["a", "b"])
    assert raised.value.fields == {"widget": "mode", "part": "default", "found": "c", "allowed": ("a", "b")}


def test_a_parameter_outside_the_choices_is_refused(make):
    with pytest.raises(ConfigError, match=r"'aa'.* 'a', 'b'") as raised:
        make({"mode": "aa"}).widgets.dropdown("mode", "a", ["a", "b"])
    assert raised.value.fields == {"widget": "mode", "part": "value", "found": "aa", "allowed": ("a", "b")}
    with pytest.raises(ConfigError, match="'x'") as raised:
        make({"many": "a,x"}).widgets.multiselect("many", "a", ["a", "b"])
    assert raised.value.fields == {"widget": "many", "part": "value", "found": "x", "allowed": ("a", "b")}


def test_a_default_that_is_no_string_is_refused(make):
    with pytest.raises(ConfigError, match="not a string") as raised:
        make().widgets.text("count", 5)
    assert raised.value.fields == {"widget": "count", "part": "default", "found": "5"}


def test_exit_is_not_caught_by_a_cell_that_catches_exceptions(make):
    with pytest.raises(NotebookExit) as caught:
        make().notebook.exit("value")
    assert caught.value.value == "value"
    assert not isinstance(caught.value, Exception)


def test_a_mounted_folder_is_made_listed_and_kept_for_the_next_run(make, tmp_path):
    folder = tmp_path / "lake"
    assert make().fs.mount(f"file://{folder}", "/mnt/lake/")
    assert folder.is_dir()
    assert make().fs.mounts() == [MountInfo("/mnt/lake", folder.as_uri(), "")]
    assert stat.S_IMODE((tmp_path / "home" / "mounts.json").stat().st_mode) == 0o600


def test_a_mount_point_that_is_taken_shows_both_sources(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "a"), "/mnt/x")
    with pytest.raises(StorageError, match=r"^Directory already mounted: /mnt/x") as raised:
        fs.mount(WASBS, "/mnt/x")
    assert raised.value.fields == {
        "mount_point": "/mnt/x",
        "mounted": (tmp_path / "a").as_uri(),
        "source": WASBS,
    }
    assert fs.updateMount(WASBS, "/mnt/x")
    assert [mount.source for mount in fs.mounts()] == [WASBS]


@pytest.mark.parametrize(
    ("source", "point", "cause"),
    [
        ("ftp://host/x", "/mnt/x", "it is not one of file:///<folder>, wasbs://<container>@"),
        ("s3:/bucket/x", "/mnt/x", "it is not one of file:///<folder>, .*s3a://<bucket>"),
        ("s3a://id@bucket/x", "/mnt/x", "it is not one of"),
        ("wasbs://nohost/x", "/mnt/x", "it is not one of"),
        ("s3a://bucket/x/..", "/mnt/x", r"holds `\.\.`, which leads out of its folder"),
        ("wasbs://c@a/x/%2e%2E/y", "/mnt/x", r"holds `\.\.`, which leads out of its folder"),
        ("file:///tmp/../proc/x", "/mnt/x", r"holds `\.\.`, which leads out of its folder"),
        ("/tmp", "/mnt", "'/mnt' is not a mount point"),
        ("/tmp", "mnt/x", "is not a mount point"),
        ("/proc/nowhere", "/mnt/x", "cannot be mounted at /mnt/x: it is not writable"),
    ],
)
def test_a_mount_that_cannot_work_is_refused_and_not_kept(make, source, point, cause):
    fs = make().fs
    with pytest.raises(StorageError, match=cause):
        fs.mount(source, point)
    assert fs.mounts() == []


def test_unmounting_keeps_the_files(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/a.txt", "text")
    fs.unmount("/mnt/lake")
    assert (tmp_path / "lake" / "a.txt").read_text() == "text"
    with pytest.raises(StorageError, match=r"^Directory not mounted: /mnt/lake; .* none") as raised:
        fs.unmount("/mnt/lake")
    assert raised.value.fields == {"mount_point": "/mnt/lake", "mounted": ()}
    with pytest.raises(StorageError, match="nothing is mounted there") as raised:
        fs.ls("/mnt/lake")
    assert raised.value.fields["path"] == "/mnt/lake"


def test_a_mounts_settings_reach_a_live_session_and_one_that_starts_later(make):
    live = SparkConf()
    make(spark=live).fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert set(live.values) == {SAS_KEY, RENEWED, LINK}
    assert live.values[SAS_KEY] == TOKEN
    later = SparkConf()
    make(spark=later).fs.refreshMounts()
    assert later.values[SAS_KEY] == TOKEN


def test_a_mounts_settings_are_newer_only_where_one_has_changed(make):
    live = SparkConf()
    fs = make(spark=live).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    first = live.values[RENEWED]
    fs.updateMount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert live.values[RENEWED] == first
    fs.updateMount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: "another"})
    assert live.values[SAS_KEY] == "another"
    assert int(live.values[RENEWED]) > int(first)


@pytest.mark.parametrize("key", ["", "c2VjcmV0\n", "c2Vjc", "c2Vj!mV0"])
def test_an_account_key_that_is_not_base64_is_refused_since_hadoop_would_show_it(make, key):
    setting = "fs.azure.account.key.account.dfs.core.windows.net"
    live = SparkConf()
    fs = make(spark=live).fs
    with pytest.raises(StorageError) as raised:
        fs.mount(ABFSS, "/mnt/raw", extra_configs={setting: key})
    assert raised.value.fields == {
        "setting": setting,
        "mount_point": "/mnt/raw",
        "reason": "account_key_form",
    }
    assert "c2Vj" not in f"{raised.value} {raised.value.fields} {raised.value.__context__}"
    assert (fs.mounts(), live.values) == ([], {})


def test_a_mount_that_gets_an_account_key_is_no_more_opened_by_its_token(make):
    live, key = SparkConf(), "fs.azure.account.key.account.blob.core.windows.net"
    fs = make(spark=live).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    fs.updateMount(WASBS, "/mnt/raw", extra_configs={key: "a2V5"})
    assert live.values.keys() == {key, RENEWED, LINK}


def test_a_mounts_credentials_are_never_shown(make):
    redactor = Redactor()
    fs = make(redactor=redactor).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    with pytest.raises(StorageError) as caught:
        fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    shown = f"{caught.value!r} {caught.value.fields} {fs.mounts()} {fs._mounts.all()} {vars(fs)} {redactor!r}"
    assert TOKEN not in shown
    assert redactor.redact(f"<{TOKEN}>") == "<[REDACTED]>"


def test_the_credentials_of_an_earlier_mount_are_redacted_in_a_new_run(make):
    make().fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    redactor = Redactor()
    make(redactor=redactor).fs.mounts()
    assert TOKEN not in redactor.redact(TOKEN)


@pytest.mark.parametrize("source", [f"s3a://key:{SECRET}@bucket/x", f"wasbs://c:{SECRET}@a.blob.net/x"])
@pytest.mark.parametrize("name", ["mount", "updateMount"])
def test_a_credential_in_a_source_is_refused_and_not_shown(make, name, source):
    live, redactor = SparkConf(), Redactor()
    fs = make(spark=live, redactor=redactor).fs
    with pytest.raises(StorageError, match="extra_configs") as raised:
        getattr(fs, name)(source, "/mnt/s3")
    scheme, _, place = source.partition("://")
    shown = f"{scheme}://[REDACTED]@{place.rpartition('@')[2]}"
    assert raised.value.fields == {"source": shown, "reason": "login"}
    assert SECRET not in str(raised.value)
    assert (fs.mounts(), live.values) == ([], {})
    # A notebook's error shows the line that failed.
    assert redactor.redact(f'mount("{source}")').count("[REDACTED]") == 1


def test_a_credential_in_a_source_that_was_mounted_once_names_no_setting(make, tmp_path):
    live, source = SparkConf(), f"s3a://key:{SECRET}@bucket/x"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mounts.json").write_text(json.dumps([{"mount_point": "/mnt/s3", "source": source}]))
    fs = make(spark=live).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert set(live.values) == {SAS_KEY, RENEWED, LINK}
    assert fs.mounts()[1].source == "s3a://[REDACTED]@bucket/x"


@pytest.mark.parametrize(
    "source",
    [
        *(
            "s3a://b",
            "s3a://b/x",
            "s3a://b/x:y@z",
            "wasb://c@a:10000/x",
            "abfss://c@a.dfs.net",
            "abfs://c@a/",
        ),
        *("s3://b/x", "gs://b/x", "adl://a/x", "wasbs://nohost", "wasbs://@a/x", "s3a:///x", "s3a://b/.."),
        *("file://host/x", "lake", "s3a://id:pw@b/x", "s3a://:pw@b/x", WASBS),
    ],
)
def test_what_may_be_mounted_is_what_a_configuration_may_name(make, source):
    try:
        StorageSettings(source=source, mount_point="/mnt/x")
    except ValidationError:
        with pytest.raises(StorageError):
            make().fs.mount(source, "/mnt/x")
    else:
        make().fs.mount(source, "/mnt/x")


@pytest.mark.parametrize(
    ("setting", "is_shown"),
    [
        ("fs.s3a.bucket.turkey.path.style.access", True),
        ("fs.s3a.bucket.turkey.endpoint", True),
        ("fs.s3a.bucket.my.token.bucket.endpoint.region", True),
        ("fs.s3a.bucket.raw.aws.credentials.provider", True),
        ("fs.azure.account.hns.enabled.saskey.dfs.core.windows.net", True),
        ("fs.azure.account.auth.type.keys.z1.dfs.storage.azure.net", True),
        ("fs.azure.sas.token.provider.type.a.dfs.core.windows.net", True),
        ("fs.s3a.bucket.turkey.secret.key", False),
        ("fs.s3a.bucket.turkey.access.key", False),
        ("fs.s3a.bucket.a.b.session.token", False),
        ("fs.s3a.secret.key", False),
        ("fs.azure.account.key.a.blob.core.windows.net", False),
        ("fs.azure.account.key.keys.z1.dfs.storage.azure.net", False),
        ("fs.azure.sas.fixed.token.a.dfs.core.windows.net", False),
        ("fs.azure.account.oauth2.client.secret.a.dfs.core.windows.net", False),
        ("fs.azure.sas.c.devstoreaccount1", False),
        (SAS_KEY, False),
    ],
)
def test_what_a_bucket_is_called_makes_no_setting_a_credential(make, setting, is_shown):
    redactor = Redactor()
    make(redactor=redactor).fs.mount(WASBS, "/mnt/raw", extra_configs={setting: "true"})
    assert redactor.redact("it is true") == ("it is true" if is_shown else "it is [REDACTED]")


#: Of one account: a token of a container is a setting of the account.
ABFSS = "abfss://raw@account.dfs.core.windows.net"
FIXED = "fs.azure.sas.fixed.token.account.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((WASBS, {SAS_KEY: TOKEN}), (f"{WASBS}/b", {SAS_KEY: "another"})),
        ((WASBS, {SAS_KEY: TOKEN}), (WASBS, {"fs.azure.account.key.account.blob.core.windows.net": "a2V5"})),
        ((f"{ABFSS}/a", {FIXED: TOKEN}), (ABFSS.replace("raw", "clean"), {FIXED: "another"})),
    ],
)
def test_a_store_with_two_credentials_is_refused_naming_the_mount_that_has_the_other(make, first, second):
    live = SparkConf()
    fs = make(spark=live).fs
    fs.mount(first[0], "/mnt/a", extra_configs=first[1])
    for mount in (fs.mount, fs.updateMount):
        with pytest.raises(StorageError, match=r" both.*unmount\('/mnt/a'\)") as raised:
            mount(second[0], "/mnt/b", extra_configs=second[1])
        assert raised.value.fields == {"mount_point": "/mnt/b", "other": "/mnt/a", "reason": "credential"}
    assert [one.mountPoint for one in fs.mounts()] == ["/mnt/a"]
    assert live.values[next(iter(first[1]))] == TOKEN


def test_mounts_of_one_store_share_their_credential_and_get_a_new_one_together(make):
    live = SparkConf()
    fs = make(spark=live).fs
    fs.mount(WASBS, "/mnt/a", extra_configs={SAS_KEY: TOKEN})
    fs.mount(f"{WASBS}/b", "/mnt/b", extra_configs={SAS_KEY: TOKEN})
    fs.mount(WASBS.replace("raw@", "other@"), "/mnt/c", extra_configs={SAS_KEY.replace("raw", "other"): "c"})
    fs.mount(WASBS, "/mnt/d")
    fs.updateMount(WASBS, "/mnt/a", extra_configs={SAS_KEY: "renewed"})
    assert {one.mount_point: list(one.configs.values()) for one in fs._mounts.all()} == {
        "/mnt/a": ["renewed"],
        "/mnt/b": ["renewed"],
        "/mnt/c": ["c"],
        "/mnt/d": [],
    }
    assert live.values[SAS_KEY] == "renewed"


def test_files_are_written_read_listed_copied_moved_and_removed(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/in/a.txt", "grüße")
    with pytest.raises(StorageError) as raised:
        fs.put("/mnt/lake/in/a.txt", "other")
    assert raised.value.fields == {"path": "/mnt/lake/in/a.txt", "reason": "exists"}
    assert fs.head("dbfs:/mnt/lake/in/a.txt") == "grüße"
    (entry,) = fs.ls("/mnt/lake")
    assert (entry.path, entry.name, entry.size, entry.isDir()) == ("dbfs:/mnt/lake/in/", "in/", 0, True)
    with pytest.raises(StorageError) as raised:
        fs.cp("/mnt/lake/in", "/mnt/lake/out")
    assert raised.value.fields == {"path": "/mnt/lake/in", "reason": "folder"}
    fs.cp("/mnt/lake/in", "/mnt/lake/out", recurse=True)
    fs.mv("/mnt/lake/out/a.txt", f"file:{tmp_path}/b.txt")
    assert [info.name for info in fs.ls(f"file:{tmp_path}")] == ["b.txt", "home/", "lake/"]
    with pytest.raises(StorageError) as raised:
        fs.rm("/mnt/lake/in")
    assert raised.value.fields == {"path": "/mnt/lake/in", "reason": "not_empty"}
    assert fs.rm("/mnt/lake/in", recurse=True)
    assert not fs.rm("/mnt/lake/in")


@pytest.mark.parametrize(
    "path",
    [
        *("/", "file:/", "dbfs:/", "dbfs:/.", "/mnt/lake", "dbfs:/mnt/lake/"),
        *("s3a://bucket/x", "relative", "/mnt/lake/../..", "dbfs:relative"),
    ],
)
def test_what_is_no_local_path_or_a_root_is_not_removed(make, tmp_path, path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    with pytest.raises(StorageError):
        fs.rm(path, recurse=True)
    assert (tmp_path / "lake").is_dir()


@pytest.mark.parametrize("path", ["/mnt", "/mnt/", "dbfs:/mnt", "//mnt", "/./mnt", "/mnt/.", "dbfs:///mnt/"])
@pytest.mark.parametrize(
    "act",
    [
        lambda fs, path: fs.rm(path, True),
        lambda fs, path: fs.mv(path, "/mnt/lake/x", True),
        lambda fs, path: fs.mv("/mnt/lake/a", path, True),
        lambda fs, path: fs.cp("/mnt/lake/a", path, True),
        lambda fs, path: fs.cp(path, "/mnt/lake/x", True),
        lambda fs, path: fs.put(path, "text", True),
        lambda fs, path: fs.mkdirs(path),
        lambda fs, path: fs.head(path),
    ],
    ids=["rm", "mv from", "mv to", "cp to", "cp from", "put", "mkdirs", "head"],
)
def test_the_folder_of_the_mounts_is_not_that_of_the_machine(make, tmp_path, monkeypatch, act, path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/a", "text")

    def fail(*given, **_):
        pytest.fail(f"{given} would be changed")

    changed = stand_in(shutil, rmtree=fail, move=fail, copytree=fail, copyfile=fail)
    monkeypatch.setattr("workbench.dbutils.fs.shutil", changed)
    with pytest.raises(StorageError, match=r"/mnt.*cannot be used: only mounts lie there|nothing is mounted"):
        act(fs, path)


@pytest.mark.parametrize("path", ["/mnt", "dbfs:/mnt/"])
def test_the_folder_of_the_mounts_lists_them(make, tmp_path, path):
    fs = make().fs
    assert fs.ls(path) == []
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.mount(WASBS, "/mnt/azure/raw")
    assert fs.ls(path) == [
        FileInfo("dbfs:/mnt/azure/", "azure/", 0, 0),
        FileInfo("dbfs:/mnt/lake/", "lake/", 0, 0),
    ]


@pytest.mark.parametrize(
    "path",
    ["/mnt/lake/../x", "dbfs:/mnt/lake/..", "/mnt/lake/%2e%2E/x", "file:{}/lake/../x", "file:{}/lake/.%2e/x"],
)
@pytest.mark.parametrize(
    "act",
    [
        lambda fs, path: fs.ls(path),
        lambda fs, path: fs.put(path, "text", True),
        lambda fs, path: fs.cp(path, "/mnt/lake/x", True),
        lambda fs, path: fs.cp("/mnt/lake/a", path, True),
        lambda fs, path: fs.mv(path, "/mnt/lake/x", True),
        lambda fs, path: fs.mv("/mnt/lake/a", path, True),
        lambda fs, path: fs.head(path),
        lambda fs, path: fs.mkdirs(path),
        lambda fs, path: fs.rm(path, True),
    ],
    ids=["ls", "put", "cp from", "cp to", "mv from", "mv to", "head", "mkdirs", "rm"],
)
def test_a_path_that_leads_out_of_its_folder_is_refused(make, tmp_path, act, path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/a", "text")
    with pytest.raises(StorageError) as raised:
        act(fs, path.format(tmp_path))
    assert raised.value.fields == {"path": path.format(tmp_path), "reason": "leads_out"}
    assert [one.name for one in fs.ls("/mnt/lake")] == ["a"]


def test_a_path_of_databricks_is_below_the_home_and_never_in_the_machines_root(make, tmp_path):
    victim, inner = tmp_path / "victim", str(tmp_path / "victim")
    victim.mkdir()
    fs = make().fs
    assert fs.ls("dbfs:/") == []
    fs.put(f"dbfs:{inner}/a.txt", "text")
    assert (tmp_path / "home" / "dbfs" / inner[1:] / "a.txt").read_text() == "text"
    assert [entry.path for entry in fs.ls(f"dbfs:{inner}")] == [f"dbfs:{inner}/a.txt"]
    assert fs.rm(f"dbfs:{inner}", recurse=True)
    assert fs.rm("dbfs:///" + inner.split("/")[1], recurse=True)
    assert victim.is_dir()


@pytest.mark.parametrize("act", ["ls", "mkdirs", "head", "rm"])
def test_a_path_that_spark_reads_elsewhere_than_databricks_is_named_with_both(make, tmp_path, act):
    with pytest.raises(StorageError) as raised:
        getattr(make().fs, act)("/tmp/x")
    assert raised.value.fields == {"path": "/tmp/x", "reason": "two_places"}
    for place in ("dbfs:/tmp/x", f"{tmp_path}/home/dbfs/tmp/x", "file:/tmp/x"):
        assert place in str(raised.value)


def test_a_mount_that_is_removed_is_no_link_any_more(make, tmp_path):
    live = SparkConf()
    fs = make(spark=live).fs
    fs.mount(str(tmp_path / "lake"), "/mnt/raw")
    assert live.values[LINK] == (tmp_path / "lake").as_uri()
    fs.unmount("/mnt/raw")
    assert LINK not in live.values


def test_a_damaged_mount_table_is_named(make, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mounts.json").write_text('[{"password": "x"')
    with pytest.raises(StorageError, match="damaged") as raised:
        make().fs.mounts()
    assert raised.value.fields == {"file": str(tmp_path / "home" / "mounts.json")}


def write_secrets(tmp_path, text, mode=0o600):
    file = tmp_path / "project" / "conf" / "secrets.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)


def test_secrets_come_from_the_environment_before_the_file(make, tmp_path, monkeypatch):
    write_secrets(tmp_path, json.dumps({"kafka-prod": {"user": "file-user", "password": "file-password"}}))
    monkeypatch.setenv("TOPICLAKE_SECRET_KAFKA_PROD_PASSWORD", "env-password")
    secrets = make().secrets
    assert secrets.get("kafka-prod", "password") == "env-password"
    assert secrets.getBytes("kafka-prod", "user") == b"file-user"
    assert [item.key for item in secrets.list("kafka-prod")] == ["password", "user"]
    assert [scope.name for scope in secrets.listScopes()] == ["kafka-prod"]


def test_an_unknown_secret_is_named_with_both_places(make, tmp_path):
    with pytest.raises(ConfigError, match=r" TOPICLAKE_SECRET_A_B .*secrets\.yaml") as raised:
        make().secrets.get("a", "b")
    assert raised.value.fields == {
        "scope": "a",
        "key": "b",
        "variable": "TOPICLAKE_SECRET_A_B",
        "folder": str(tmp_path / "project" / "conf" / "secrets"),
        "file": str(tmp_path / "project" / "conf" / "secrets.yaml"),
    }


def test_a_secrets_file_that_others_can_read_is_refused(make, tmp_path):
    write_secrets(tmp_path, "a: {b: c}", mode=0o640)
    with pytest.raises(ConfigError, match="; try: chmod 600") as raised:
        make().secrets.get("a", "b")
    file = str(tmp_path / "project" / "conf" / "secrets.yaml")
    assert raised.value.fields == {"file": file, "reason": "readable"}


def test_a_broken_secrets_file_is_named_by_line_without_its_text(make, tmp_path):
    write_secrets(tmp_path, "a:\n  b: {hidden-value\n")
    with pytest.raises(ConfigError, match=r"secrets\.yaml, line \d") as caught:
        make().secrets.get("a", "b")
    assert caught.value.fields == {
        "file": str(tmp_path / "project" / "conf" / "secrets.yaml"),
        "line": 3,
        "reason": "no_yaml",
    }
    assert "hidden-value" not in str(caught.value)


@pytest.mark.parametrize("secret", ["plain", 'a<b>&"c"', "line\nbreak", "back\\slash'", "sig=a/b+c%3D"])
def test_a_secret_is_redacted_however_it_is_quoted(make, monkeypatch, secret):
    monkeypatch.setenv("TOPICLAKE_SECRET_S_K", secret)
    redactor = Redactor()
    make(redactor=redactor).secrets.get("s", "k")
    for text in (
        secret,
        html.escape(secret),
        json.dumps(secret),
        repr(secret),
        urllib.parse.quote_plus(secret),
    ):
        bare = redactor.redact(text).strip("\"'")
        assert bare == "[REDACTED]"
    assert redactor.redact_all({"a": [f"x{secret}"], "b": 1}) == {"a": ["x[REDACTED]"], "b": 1}


def test_the_first_half_of_a_secret_at_the_end_of_a_text_is_noticed():
    redactor = Redactor()
    redactor.remember("password")
    assert redactor.open_end("my pass") == 4
    assert redactor.open_end("my past") == 0
    redactor.remember("  ")
    assert redactor.redact("a  b") == "a  b"


def mount_secrets(folder, mode=0o440):
    """Make a scope as Kubernetes mounts it: names are links into a hidden folder with the version."""
    version = folder / "kafka" / "..2026_11_21"
    version.mkdir(parents=True)
    (version / "password").write_text("mounted-password\n")
    (version / "password").chmod(mode)
    (folder / "kafka" / "..data").symlink_to(version.name)
    (folder / "kafka" / "password").symlink_to("..data/password")
    (folder / "..data").symlink_to(folder / "kafka")


def test_secrets_come_from_a_folder_before_the_file_and_after_the_environment(make, tmp_path, monkeypatch):
    write_secrets(tmp_path, json.dumps({"kafka": {"password": "file-password", "user": "me"}, "other": {}}))
    folder = tmp_path / "project" / "conf" / "secrets"
    mount_secrets(folder)
    (folder / "kafka" / "only-here").touch()
    (folder / "scope-only-here").mkdir()
    redactor = Redactor()
    secrets = make(redactor=redactor).secrets
    assert [secrets.get("kafka", "password"), secrets.get("kafka", "user")] == ["mounted-password", "me"]
    assert redactor.redact("mounted-password") == "[REDACTED]"
    assert [item.key for item in secrets.list("kafka")] == ["only-here", "password", "user"]
    assert [scope.name for scope in secrets.listScopes()] == ["kafka", "other", "scope-only-here"]
    monkeypatch.setenv("TOPICLAKE_SECRET_KAFKA_PASSWORD", "env-password")
    assert secrets.get("kafka", "password") == "env-password"


def test_the_folder_of_secrets_may_be_named_by_a_variable(make, tmp_path, monkeypatch):
    mount_secrets(tmp_path / "mounted")
    monkeypatch.setenv("TOPICLAKE_SECRETS_FOLDER", str(tmp_path / "mounted"))
    assert make().secrets.get("kafka", "password") == "mounted-password"


def test_a_mounted_secret_that_others_can_read_is_refused(make, tmp_path):
    mount_secrets(tmp_path / "project" / "conf" / "secrets", mode=0o444)
    with pytest.raises(ConfigError, match="; try: run chmod o=") as raised:
        make().secrets.get("kafka", "password")
    file = str(tmp_path / "project" / "conf" / "secrets" / "kafka" / "password")
    assert raised.value.fields == {"file": file, "reason": "readable"}


@pytest.mark.parametrize(
    ("scope", "key"),
    [("..", "outside"), ("kafka", "../../outside"), ("kafka/..2026_11_21", "password"), ("", "x")],
)
def test_a_secrets_name_is_no_path(make, tmp_path, scope, key):
    folder = tmp_path / "project" / "conf" / "secrets"
    mount_secrets(folder)
    (folder.parent / "outside").write_text("x")
    with pytest.raises(ConfigError, match="exists neither") as raised:
        make().secrets.get(scope, key)
    assert (raised.value.fields["scope"], raised.value.fields["key"]) == (scope, key)


def test_a_mounted_secret_that_is_no_text_is_named_without_its_bytes(make, tmp_path):
    folder = tmp_path / "project" / "conf" / "secrets"
    mount_secrets(folder, mode=0o600)
    (folder / "kafka" / "password").write_bytes(b"hidden\xff")
    with pytest.raises(ConfigError) as caught:
        make().secrets.get("kafka", "password")
    assert caught.value.fields == {"file": str(folder / "kafka" / "password"), "reason": "no_text"}
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ("", ["fs: Files in", "jobs: ", "notebook: ", "secrets: ", "widgets: "]),
        ("fs", ["cp(source, dest, recurse=False): Copy a file", "ls(path): List a folder"]),
        ("jobs", ["taskValues: Values of the current job run"]),
        (
            "jobs.taskValues",
            ["get(taskKey, key, default=None, debugValue=None): Return", "set(key, value): "],
        ),
        ("notebook", ["exit(value): End the run", "run(path, timeout_seconds, arguments=None): Run"]),
        ("secrets", ["get(scope, key): Return a secret", "listScopes(): List"]),
        ("widgets", ["dropdown(name, defaultValue, choices, label=None): Define"]),
    ],
)
def test_help_lists_what_is_there_on_each_level(make, capsys, part, lines):
    found = make()
    for name in filter(None, part.split(".")):
        found = getattr(found, name)
    found.help()
    shown = capsys.readouterr().out.splitlines()
    for begin in lines:
        assert [line for line in shown if line.startswith(begin)], begin
    assert not [line for line in shown if line.startswith("_")]


def test_help_describes_one_method_and_names_one_that_is_not_there(make, capsys):
    fs = make().fs
    fs.help("rm")
    shown = capsys.readouterr().out
    assert shown.startswith("rm(dir, recurse=False)\n\nRemove a file or folder")
    assert "StorageError: A folder is not empty" in shown
    with pytest.raises(ConfigError, match="; try: ") as raised:
        fs.help("remove")
    assert raised.value.fields["method"] == "remove"
    assert "rm" in raised.value.fields["allowed"]


def test_help_describes_a_part_and_names_one_that_is_not_there(make, capsys):
    dbutils = make()
    dbutils.help("fs")
    assert "ls(path)" in capsys.readouterr().out
    dbutils.jobs.help("taskValues")
    assert "set(key, value)" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="; try: use fs") as raised:
        dbutils.help("fss")
    assert raised.value.fields["method"] == "fss"
    assert "fs" in raised.value.fields["allowed"]


def test_a_link_is_listed_though_it_leads_nowhere_and_removed_without_what_it_leads_to(make, tmp_path):
    fs, folder = make().fs, tmp_path / "lake"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("text")
    folder.mkdir()
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "link").symlink_to(tmp_path / "kept")
    assert [(one.name, one.size) for one in fs.ls(f"file:{folder}")] == [("dangling", 0), ("link/", 0)]
    assert fs.rm(f"file:{folder}/link/", True)
    assert fs.rm(f"file:{folder}/dangling")
    assert list(folder.iterdir()) == []
    assert (tmp_path / "kept" / "a.txt").read_text() == "text"


@pytest.mark.parametrize("path", ["file:///.", "file:////", "file:/"])
def test_the_root_stays_however_it_is_written(make, path, monkeypatch):
    spared = stand_in(shutil, rmtree=lambda target: pytest.fail(f"{target} would be removed"))
    monkeypatch.setattr("workbench.dbutils.fs.shutil", spared)
    with pytest.raises(StorageError) as raised:
        make().fs.rm(path, True)
    assert raised.value.fields == {"path": path, "reason": "root"}
