"""The notebooks against a broker with SASL_SSL and a registry behind TLS and basic auth; no secret shows."""

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from pyspark.sql import SparkSession

import topiclake as tl
from tests.services.fault_proxy import FaultProxy
from tests.services.kafka import ConfiguredBroker
from tests.support import spark_views
from tests.support.environment import succeeded, without_workbench
from tests.support.secrets import Secret, leaks
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.errors import KafkaError, SchemaRegistryError
from topiclake.ingest import targets
from topiclake.ingest.start import start_ingest
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.registry import SchemaRegistry as RegistryClient
from topiclake.storage.mount import mount
from topiclake.streaming.progress import await_caught_up
from topiclake_examples.gps import publish_tracks
from workbench.commands.init import create_pipeline
from workbench.commands.topic_options import Request
from workbench.dbutils import DBUtils
from workbench.host import processes
from workbench.host.certificates import Certificate, make_certificate
from workbench.host.home import Home
from workbench.services import control as services
from workbench.services.kafka_broker import KafkaBroker
from workbench.services.schema_registry import SchemaRegistry

PROJECT = Path(__file__).parents[3]
RECORDS = 993  # in data/gps_tracks.csv
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


# ---------------------------------------------------------------------------------------------- secrets


def _password() -> Secret:
    return Secret(between="""é"\\ :'%$<&>/+#{}@;=,\\n""")


KAFKA_USERNAME, REGISTRY_USERNAME = Secret(), Secret(between=" '\"")
KAFKA_PASSWORD, REGISTRY_PASSWORD, SAS_TOKEN = _password(), _password(), _password()
PASSWORDS = [KAFKA_PASSWORD, REGISTRY_PASSWORD, SAS_TOKEN]
SECRETS = {
    "kafka-username": KAFKA_USERNAME,
    "kafka-password": KAFKA_PASSWORD,
    "registry-username": REGISTRY_USERNAME,
    "registry-password": REGISTRY_PASSWORD,
    "storage-sas": SAS_TOKEN,
}


def read_secret(scope: str, key: str) -> str:
    """Play `dbutils.secrets.get`, without the workbench's redaction of what a notebook shows."""
    return os.environ[_variable(key)] if scope == "topiclake" else ""


def _variable(key: str) -> str:
    return f"TOPICLAKE_SECRET_TOPICLAKE_{key.replace('-', '_').upper()}"


# --------------------------------------------------------------------------------------------- services


@dataclass(frozen=True)
class Secure:
    """The running services."""

    home: Home
    proxy: FaultProxy
    kafka: str
    certificate: Certificate

    @property
    def registry(self) -> str:
        return self.proxy.url

    @property
    def server_properties(self) -> Path:
        return KafkaBroker(self.home).properties_file


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("secure")
    certificate = make_certificate(folder / "certificates", "localhost", "127.0.0.1")
    home = Home(folder / "services", PROJECT)
    try:
        found = services.start_services(home, [broker(home, certificate), SchemaRegistry(home)])
        with FaultProxy(found["schema-registry"], certificate=certificate) as proxy:
            proxy.login = str(REGISTRY_USERNAME), str(REGISTRY_PASSWORD)
            yield Secure(home, proxy, found["kafka"], certificate)
    finally:
        services.down(home)
    assert processes.marked(home) == []


def broker(home: Home, certificate: Certificate) -> ConfiguredBroker:
    keystore = certificate.key.with_name("keystore.pem")
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    # Kafka reads PKCS#8 only.
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    keystore.write_bytes(key.private_bytes(*form) + certificate.certificate.read_bytes())
    escaped = str(KAFKA_PASSWORD).replace("\\", "\\\\").replace('"', '\\"')
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{LOGIN_MODULE} required user_{KAFKA_USERNAME}="{escaped}";'
        ),
    }
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificate.authority),
        "sasl.mechanism": "PLAIN",
        "sasl.username": str(KAFKA_USERNAME),
        "sasl.password": str(KAFKA_PASSWORD),
    }
    return ConfiguredBroker(home, properties, "SASL_SSL", client)


# ------------------------------------------------------------------------------------- a user's project


@dataclass(frozen=True)
class Project:
    """A user's checkout, with `conf/azure.yaml` for the services above, and all that its runs leave."""

    folder: Path
    services: Secure
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def datalake(self) -> Path:
        return self.folder / "datalake"

    @property
    def environment(self) -> dict[str, str]:
        (self.folder / "tmp").mkdir(exist_ok=True)
        return without_workbench() | {
            "WORKBENCH_HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": str(PROJECT),
            "COLUMNS": "500",
            "TOPICLAKE_KAFKA": self.services.kafka.replace("127.0.0.1", "localhost"),
            "TOPICLAKE_SCHEMA_REGISTRY": self.services.registry,
            "TOPICLAKE_STORAGE": self.datalake.as_uri(),
            **{_variable(key): str(secret) for key, secret in SECRETS.items()},
            **self.changed,
        }

    def run(self, notebook: str, *parameters: str) -> subprocess.CompletedProcess[str]:
        """Run a notebook as a user does, and keep what the terminal showed."""
        given = [part for parameter in ("env=azure", *parameters) for part in ("-p", parameter)]
        return self.python("-m", "workbench", "run", f"notebooks/{notebook}.py", *given)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        number = len(list(self.folder.glob("terminal-*")))
        (self.folder / f"terminal-{number}.log").write_text(done.stdout + done.stderr, "utf-8")
        return done


def make_project(folder: Path, secure: Secure, *, trusting: bool = True, **changed: str) -> Project:
    """Copy the project's notebooks and configuration; `changed` are secrets by key, with underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("notebooks", "conf"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("secrets.yaml"))
    for name in ("jars", "data"):
        (folder / name).symlink_to(PROJECT / name)
    if trusting:
        file = folder / "conf" / "azure.yaml"
        conf = yaml.safe_load(file.read_text("utf-8"))
        for section in ("kafka", "schema_registry"):
            conf[section]["ca_file"] = str(secure.certificate.authority)
        file.write_text(yaml.safe_dump(conf), "utf-8")
    return Project(folder, secure, {_variable(key): value for key, value in changed.items()})


def exit_value(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found = re.search(r"^exit value +(\{.*\})$", succeeded(done), re.MULTILINE)
    assert found, done.stdout
    value: dict[str, Any] = json.loads(found[1])
    return value


@pytest.fixture(scope="module")
def project(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with an event log of every Spark that its notebooks start."""
    made = make_project(tmp_path_factory.mktemp("project"), secure)
    events = made.folder / "spark-events"
    events.mkdir()
    options = f"{os.environ['JDK_JAVA_OPTIONS']} {_event_log(events)}"
    return replace(made, changed=made.changed | {"JDK_JAVA_OPTIONS": options})


def _event_log(folder: Path) -> str:
    settings = {"enabled": "true", "dir": folder.as_uri(), "compress": "false"}
    return " ".join(f"-Dspark.eventLog.{name}={value}" for name, value in settings.items())


@pytest.fixture(scope="module")
def published(project: Project) -> dict[str, Any]:
    return exit_value(project.run("gps_publish"))


@pytest.fixture(scope="module")
def ingested(project: Project, published: dict[str, Any]) -> dict[str, Any]:
    return exit_value(project.run("gps_ingest"))


# ---------------------------------------------------------------------------------------- what is proven


def test_records_are_published_and_ingested_with_sasl_ssl_and_a_registry_behind_basic_auth(
    secure: Secure, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_project(tmp_path / "p", secure)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    given = {"env": "azure", "topic": "gps_in_process"}
    settings = load_settings("gps", given, secrets=read_secret, conf=made.folder / "conf")
    publish_tracks(settings, PROJECT / "data" / "gps_tracks.csv", devices=3)
    dbutils = DBUtils(made.home, made.folder)
    mount(dbutils, settings.storage, spark)
    query = start_ingest(spark, settings)
    await_caught_up(query, settings.pipeline.trigger)
    summary = tl.summarize(spark, settings, query)
    assert (summary.rows_written, summary.quarantined) == (RECORDS, {})
    assert tl.audit_ingest(spark, settings).ok
    assert leaks(made.folder, list(SECRETS.values())) == []


@pytest.mark.thorough("the same logins by the command line, in cold drivers")
@pytest.mark.slow("cold drivers")
def test_the_notebooks_publish_and_ingest_with_sasl_ssl_and_a_registry_behind_basic_auth(
    published: dict[str, Any], ingested: dict[str, Any]
) -> None:
    assert published["records"] == RECORDS
    assert (ingested["rows_written"], ingested["quarantined"]) == (RECORDS, {})
    assert (ingested["table"]["rows"], ingested["quarantine"]["rows"]) == (RECORDS, 0)


@pytest.mark.thorough("the same logins by the command line, in cold drivers")
@pytest.mark.usefixtures("published")
def test_javas_console_consumer_has_the_same_logins_and_certificates(project: Project) -> None:
    options = ("--avro", "--from-beginning", "--max-messages", str(RECORDS))
    shown = succeeded(project.python("-m", "workbench", "consume", "gps", "-p", "env=azure", *options))
    fields = {"timestamp", "deviceId", "latitude", "longitude", "altitude", "speed"}
    assert [set(json.loads(line)) for line in shown.splitlines()] == [fields] * RECORDS


@pytest.mark.thorough("the same logins by the command line, in cold drivers")
@pytest.mark.usefixtures("ingested")
def test_no_secret_is_in_what_the_runs_showed_and_left(project: Project, secure: Secure) -> None:
    left = [file.relative_to(project.folder).as_posix() for file in project.folder.rglob("*")]
    for expected in (
        r"terminal-1\.log",
        r"home/runs/[^/]*/gps_publish\.html",
        r"home/runs/[^/]*/gps_ingest\.ipynb",
        r"home/mounts\.json",
        r"spark-events/.*local-.*",
        r"datalake/checkpoints/gps/offsets/0",
        r"datalake/delta/gps/_delta_log/0*1\.json",
    ):
        assert [name for name in left if re.fullmatch(expected, name)], expected
    assert leaks(project.folder, list(SECRETS.values())) == []

    # The broker's own configuration has to hold the password; its owner alone reads it.
    own = secure.server_properties
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert leaks(secure.home.folder, PASSWORDS, but=(own,)) == []
    asked = "\n".join(request.path for request in secure.proxy.requests).encode()
    assert b"/subjects/gps-value" in asked
    assert [spelling for secret in PASSWORDS for spelling in secret.spellings if spelling in asked] == []


@pytest.mark.parametrize(
    "spelled",
    [
        str,
        lambda secret: json.dumps(json.dumps({"jaas": f'password="{secret}"'})),
        lambda secret: repr(str(secret)),
        lambda secret: str(secret)[: len(secret.cores[0]) + 3],
        *(
            lambda secret, user="u" * n: base64.b64encode(f"{user}:{secret}".encode()).decode()
            for n in (1, 2, 3)
        ),
    ],
    ids=["as it is", "in JSON", "repr", "the first half", "basic auth", "basic auth, 2", "basic auth, 3"],
)
def test_a_planted_secret_is_found(tmp_path: Path, spelled: Any) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "clean.log").write_text(f"Basic {base64.b64encode(b'nobody:nothing').decode()}")
    assert leaks(tmp_path, PASSWORDS) == []
    for secret in PASSWORDS:
        (tmp_path / "deep" / "part-0").write_text(f"before {spelled(secret)} after", "utf-8")
        assert leaks(tmp_path, PASSWORDS) == ["deep/part-0"]


def test_a_planted_secret_is_found_in_a_files_name(tmp_path: Path) -> None:
    (tmp_path / f"user={KAFKA_USERNAME}").touch()
    assert len(leaks(tmp_path, [KAFKA_USERNAME])) == 1


def look_into_spark(folder: str) -> None:
    """Print every view of an ingest, and the error of a refused login; for its own process."""
    with spark_views.shown(Path(folder), "gps", {"env": "azure"}, read_secret) as (spark, settings):
        spark_views.show("== refused:", _login_lost(spark, settings))


def _login_lost(spark: Any, settings: Settings) -> str:
    """Let the broker refuse the query itself, as when a password is changed while it runs."""
    os.environ[_variable("kafka-password")] = str(SECRETS["storage-sas"])
    records = kafka_source.read_topic(spark, settings.kafka, settings.pipeline)
    query = records.writeStream.format("noop").queryName("lost").trigger(availableNow=True).start()
    try:
        await_caught_up(query, "availableNow")
    except Exception as error:  # noqa: BLE001 (its text is what the test looks at)
        return f"{type(error).__name__}: {error}"
    return "never"


@pytest.mark.thorough("secrets in what an ingest leaves are tested next to it")
@pytest.mark.slow("a cold driver with every log open")
@pytest.mark.usefixtures("published")
def test_no_secret_is_in_plans_progress_settings_ui_and_logs_of_spark(project: Project) -> None:
    probe = project.folder / "probe"
    imported = "from tests.integration.workbench.test_secure_services import look_into_spark"
    code = spark_views.chatty(probe)
    done = project.python("-c", f"{code}; {imported}; look_into_spark({str(probe)!r})")

    # The views are there, and know of the login, so that they could have shown it.
    shown, log = succeeded(done), (probe / "driver.log").read_text("utf-8")
    assert "== Analyzed Logical Plan ==" in shown
    assert f"== batch rows {RECORDS}" in shown
    assert '"numInputRows"' in shown
    assert "kafka.sasl.jaas.config" in shown
    assert "LoginModule required *********(redacted);" in shown
    assert "sasl.jaas.config = [hidden]" in log
    assert next(probe.glob("*local-*"))
    refused = next(line for line in shown.splitlines() if line.startswith("== refused:"))
    assert "the broker refuses the login; try: check the secrets kafka.username" in refused

    assert leaks(project.folder, list(SECRETS.values())) == []


def test_settings_and_what_is_made_of_them_show_no_secret(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings("gps", {"env": "azure"}, secrets=read_secret, conf=project.folder / "conf")
    target = targets.target(
        settings.model_copy(
            update={
                "pipeline": settings.pipeline.model_copy(update={"table_path": "/t", "checkpoint_path": "/c"})
            }
        )
    )
    assert settings.kafka.password is not None
    assert settings.kafka.password.reveal() == str(KAFKA_PASSWORD)
    shown = [
        *(
            show(thing)
            for thing in (settings, settings.kafka, target, target.schemas.registry)
            for show in (repr, str)
        ),
        settings.model_dump_json(),
        repr(settings.model_dump()),
        repr(settings.kafka.password),
    ]
    text = "\n".join(shown).encode()
    assert b"Secret(topiclake/kafka-password, [REDACTED])" in text
    assert [
        spelling for secret in SECRETS.values() for spelling in secret.spellings if spelling in text
    ] == []


@pytest.fixture
def untrusting(secure: Secure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The right logins, without the authority that signed the certificates."""
    made = make_project(tmp_path / "p", secure, trusting=False)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return load_settings("gps", {"env": "azure"}, secrets=read_secret, conf=made.folder / "conf")


def test_an_untrusted_certificate_of_the_broker_is_named(untrusting: Settings) -> None:
    with pytest.raises(KafkaError) as caught:
        kafka_admin.require_topic(untrusting.kafka, "gps")
    assert re.search(r"no TLS connection to the broker at localhost:\d+: .*certificate", caught.value.cause)
    assert "kafka.ca_file" in caught.value.remedy


def test_an_untrusted_certificate_of_the_registry_is_named(untrusting: Settings, secure: Secure) -> None:
    with pytest.raises(SchemaRegistryError) as caught:
        RegistryClient.from_settings(untrusting.schema_registry).latest("gps-value")
    assert re.search(rf"{secure.registry} .*certificate", caught.value.cause)
    assert "ca_file" in caught.value.remedy


@pytest.mark.thorough("both logins of init are tested in parts")
def test_init_tries_both_logins_and_stores_them_for_their_owner(
    secure: Secure, published: dict[str, Any], tmp_path: Path
) -> None:
    project = make_project(tmp_path / "p", secure).folder
    home = Home(tmp_path / "home", project)
    logins = {
        f"{service}-{part}": str(SECRETS[f"{service}-{part}"])
        for service in ("kafka", "registry")
        for part in ("username", "password")
    }
    request = Request(
        "orders",
        published["topic"],
        into=str(tmp_path / "lake"),
        bootstrap=secure.kafka,
        registry=secure.registry,
        kafka={"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"},
        ca_file=str(secure.certificate.authority),
        logins=logins,
    )
    before = sorted(project.rglob("*"))
    for login, error in (("kafka-password", KafkaError), ("registry-password", SchemaRegistryError)):
        with pytest.raises(error, match="login") as raised:
            create_pipeline(home, replace(request, logins=logins | {login: "wrong"}))
        assert "wrong" not in str(raised.value)
    assert sorted(project.rglob("*")) == before
    created = create_pipeline(home, request)
    private = [file for file in created.files if file.parent.parent.name == "secrets"]
    assert {file.name: file.read_text("utf-8") for file in private} == logins
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    public = [file.read_text("utf-8") for file in created.files if file not in private]
    assert not any(secret in text for text in public for secret in logins.values())
