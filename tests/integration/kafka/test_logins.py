"""Logins at a real broker: a listener with client certificates, and one with tokens of an OAuth server.

The broker verifies signature, issuer, audience and times of each token by the keys of the server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from tests.services.fault_proxy import FaultProxy
from tests.services.kafka import ConfiguredBroker
from tests.services.oidc import AUDIENCE, OidcServer
from tests.support import spark_views
from tests.support.certificates import client_certificate, keystore, server_keystore, with_password
from tests.support.environment import succeeded, without_workbench
from tests.support.local_rows import local_rows
from tests.support.numbers_topic import SCHEMA, right
from tests.support.secrets import Secret, leaks
from tests.support.waiting import wait_until
from topiclake import audit_ingest, create_view, start_ingest
from topiclake.config.kafka import KafkaSettings
from topiclake.config.load import load_settings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.errors import KafkaError
from topiclake.kafka import admin, cloud_tokens, source, writer
from topiclake.kafka.client import client_settings
from topiclake.kafka.login import jvm_login
from topiclake.kafka.offsets import topic_offsets
from topiclake.login.oauth import OAuthClient
from topiclake.schema_registry.registry import SchemaRegistry as SchemaRegistryClient
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming.progress import await_caught_up
from workbench.host import processes
from workbench.host.certificates import Certificate, make_certificate
from workbench.host.home import Home
from workbench.host.java import require_java
from workbench.host.ports import HOST
from workbench.services import control as services
from workbench.services.schema_registry import SchemaRegistry

pytestmark = pytest.mark.thorough("passwords and TLS are tested in test_secure_services")
PROJECT = Path(__file__).parents[3]
SECURITY = "org.apache.kafka.common.security.oauthbearer"
KEY_PASSWORD = 'k3y"\\,: =word'
REGISTRY_TOKEN = "r3gistry-token"
OAUTH_SECRET = {"client_secret": "{{secrets/s/oauth-secret}}"}
#: Seconds after which a connection has to log in again.
REAUTHENTICATION = 3


@dataclass(frozen=True)
class LoginBroker(ConfiguredBroker):
    """A broker whose clients' listener asks for certificates, and another one for tokens."""

    jwks_url: str = ""
    classes: Path = Path()

    port_names = (*ConfiguredBroker.port_names, "kafka-oauth")

    def settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return what `server.properties` holds."""
        settings = super().settings(ports)
        oauth = f",OAUTH://{HOST}:{ports['kafka-oauth']}"
        return settings | {
            "listeners": settings["listeners"] + oauth,
            "advertised.listeners": settings["advertised.listeners"] + oauth,
            "listener.security.protocol.map": settings["listener.security.protocol.map"] + ",OAUTH:SASL_SSL",
        }

    def _java_options(self) -> list[str]:
        *options, class_path = super()._java_options()
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks_url}"
        return [allowed, *options, f"{class_path}{os.pathsep}{self.classes}"]


@dataclass(frozen=True)
class World:
    """The running services, and the settings of clients."""

    server: Certificate
    client: Certificate
    oidc: OidcServer
    mtls_address: str
    oauth_address: str
    registry: str

    def mtls(self, **certificate: object) -> KafkaSettings:
        """Return the settings with a client certificate, by default the right one in PEM files."""
        files = {"file": self.client.certificate, "key_file": self.client.key}
        return self._settings(
            bootstrap_servers=self.mtls_address,
            security_protocol="SSL",
            client_certificate=certificate or files,
        )

    def oauth(self, **changed: object) -> KafkaSettings:
        """Return the settings of an application at the OAuth server."""
        return self._settings(
            bootstrap_servers=self.oauth_address,
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            oauth={
                "token_url": self.oidc.token_url,
                "client_id": self.oidc.client_id,
                "client_secret": "{{secrets/s/oauth-secret}}",
                "scope": "kafka",
                "ca_file": self.server.authority,
                **changed,
            },
        )

    def _settings(self, **given: object) -> KafkaSettings:
        secrets = {"oauth-secret": self.oidc.client_secret, "key-password": KEY_PASSWORD, "wrong": "hunter2"}
        return KafkaSettings.model_validate(
            {"ca_file": self.server.authority} | given,
            context={"secrets": lambda _scope, key: secrets[key]},
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("logins")
    server, client = (
        make_certificate(folder / "server", "localhost", HOST),
        client_certificate(folder / "client"),
    )
    home = Home(folder / "services", PROJECT)
    with OidcServer(server) as oidc:
        broker = LoginBroker(
            home,
            broker_properties(server, client, oidc),
            "SSL",
            {
                "security.protocol": "SSL",
                "ssl.ca.location": str(server.authority),
                "ssl.certificate.location": str(client.certificate),
                "ssl.key.location": str(client.key),
            },
            oidc.jwks_url,
            compiled(Path(__file__).with_name("ClusterValidator.java"), folder / "classes"),
        )
        try:
            found = services.start_services(home, [broker, SchemaRegistry(home)])
            oauth = f"{HOST}:{home.load().ports['kafka-oauth']}"
            yield World(server, client, oidc, found["kafka"], oauth, found["schema-registry"])
        finally:
            services.down(home)
    assert processes.marked(home) == []


def compiled(source: Path, folder: Path) -> Path:
    """Compile a class of the broker; return the folder of classes."""
    folder.mkdir()
    class_path = PROJECT / "jars" / "kafka" / "target" / "jars" / "*"
    compiler = require_java().path.with_name("javac")
    subprocess.run([compiler, "-cp", class_path, "-d", folder, source], check=True, timeout=240)
    return folder


def broker_properties(server: Certificate, client: Certificate, oidc: OidcServer) -> dict[str, str]:
    mtls, oauth = "listener.name.client.ssl", "listener.name.oauth.oauthbearer"
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server_keystore(server)),
        f"{mtls}.client.auth": "required",
        f"{mtls}.truststore.type": "PEM",
        f"{mtls}.truststore.location": str(client.authority),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{oauth}.sasl.jaas.config": f"{SECURITY}.OAuthBearerLoginModule required;",
        f"{oauth}.sasl.server.callback.handler.class": "ClusterValidator",
        # By default, Kafka 4.1.0 checks only the form and the end of a token.
        "sasl.oauthbearer.jwt.validator.class": f"{SECURITY}.BrokerJwtValidator",
        f"{oauth}.connections.max.reauth.ms": str(REAUTHENTICATION * 1000),
        "sasl.oauthbearer.jwks.endpoint.url": oidc.jwks_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": oidc.url,
    }


@pytest.fixture
def world(running: World) -> Iterator[World]:
    running.oidc.reset()
    yield running
    running.oidc.reset()


@pytest.fixture
def topic() -> str:
    return f"logins-{uuid4().hex[:8]}"


def produce(kafka: KafkaSettings, topic: str, *values: str) -> None:
    producer = Producer(client_settings(kafka))
    for value in values:
        producer.produce(topic, value=value.encode())
    assert producer.flush(120) == 0


def consume(kafka: KafkaSettings, topic: str, count: int) -> list[str]:
    consumer = Consumer(client_settings(kafka) | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[str] = []
    wait_until(lambda: values.extend(_polled(consumer)) or len(values) >= count)
    consumer.close()
    return sorted(values)


def _polled(consumer: Consumer) -> list[str]:
    record = consumer.poll(1)
    if record is None:
        return []
    assert record.error() is None
    return [record.value().decode()]


def records(spark: SparkSession, kafka: KafkaSettings, topic: str) -> DataFrame:
    options = source.range_options(kafka) | {"subscribe": topic}
    return spark.read.format("kafka").options(**options).load().selectExpr("CAST(value AS STRING)")


def stream(spark: SparkSession, kafka: KafkaSettings, topic: str) -> DataFrame:
    pipeline = PipelineSettings(topic=topic, view="v", table_path="/t", checkpoint_path="/c")
    return source.read_topic(spark, kafka, pipeline).selectExpr("CAST(value AS STRING)")


def write_with_spark(spark: SparkSession, kafka: KafkaSettings, topic: str, value: str) -> None:
    rows = local_rows(spark, [(value,)], "value STRING")
    rows.write.format("kafka").options(**writer.writer_options(kafka, topic)).save()


def carried(spark: SparkSession, kafka: KafkaSettings, topic: str) -> None:
    """Let each client write and read."""
    assert admin.ensure_topic(kafka, topic, 2) == 2
    produce(kafka, topic, "python")
    write_with_spark(spark, kafka, topic, "spark")
    assert sorted(row.value for row in records(spark, kafka, topic).collect()) == ["python", "spark"]
    assert consume(kafka, topic, 2) == ["python", "spark"]
    assert sum(end - first for first, end in topic_offsets(kafka, topic).values()) == 2


# Certificates


def test_each_client_logs_in_with_a_certificate(world: World, spark: SparkSession, topic: str) -> None:
    carried(spark, world.mtls(), topic)


def test_a_keystore_and_a_key_with_a_password_are_the_same_login(
    world: World, spark: SparkSession, topic: str
) -> None:
    password = "{{secrets/s/key-password}}"
    store = world.mtls(file=keystore(world.client, KEY_PASSWORD), password=password)
    key = with_password(world.client, KEY_PASSWORD)
    encrypted = world.mtls(file=world.client.certificate, key_file=key, password=password)
    admin.ensure_topic(store, topic, 1)
    write_with_spark(spark, store, topic, "1")
    assert [row.value for row in records(spark, encrypted, topic).collect()] == ["1"]


def test_a_certificate_of_another_authority_is_refused(world: World, tmp_path: Path, topic: str) -> None:
    other = client_certificate(tmp_path / "other")
    refused = world.mtls(file=other.certificate, key_file=other.key)
    without = KafkaSettings(
        bootstrap_servers=world.mtls_address, security_protocol="SSL", ca_file=world.server.authority
    )
    for kafka in (refused, without):
        with pytest.raises(KafkaError) as raised:
            admin.require_topic(kafka, topic)
        assert raised.value.fields == {"server": world.mtls_address, "reason": "certificate"}


# Tokens


def test_each_client_logs_in_with_tokens(world: World, spark: SparkSession, topic: str) -> None:
    # Confluent Cloud asks for these extensions.
    carried(spark, world.oauth(logical_cluster="lkc-1", identity_pool_id="pool-1"), topic)
    assert {request.form["scope"] for request in world.oidc.requests} == {"kafka"}
    assert {request.user_agent.startswith("Java/") for request in world.oidc.requests} == {True, False}


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1_700_000_000}, "it expired at 2023-11-14T22:13:20Z"),
        ({"nbf": 4_000_000_000}, "it is not valid before 2096-10-02T07:06:40Z"),
        ({"aud": "other"}, "its audience is 'other', and its issuer"),
        ({"iss": "http://other"}, "and its issuer 'http://other'"),
    ],
)
def test_a_token_that_the_broker_refuses_is_explained(
    world: World, topic: str, claims: dict[str, object], problem: str
) -> None:
    world.oidc.claims = claims
    with pytest.raises(KafkaError) as raised:
        admin.require_topic(world.oauth(), topic)
    assert f"the broker at {world.oauth_address} refuses the token of the client orders" in raised.value.cause
    assert problem in raised.value.cause
    assert raised.value.fields == {"server": world.oauth_address, "reason": "token"}


def test_another_cluster_than_the_brokers_is_named(world: World, topic: str) -> None:
    with pytest.raises(KafkaError) as raised:
        admin.require_topic(world.oauth(logical_cluster="lkc-2", identity_pool_id="pool-1"), topic)
    refused = (
        f"the broker at {world.oauth_address} refuses the token of the client orders for the cluster lkc-2"
    )
    assert refused in raised.value.cause
    assert raised.value.remedy.startswith("check logical_cluster, identity_pool_id and scope of kafka.oauth")


def test_a_token_with_a_foreign_signature_is_refused(world: World, topic: str) -> None:
    world.oidc.foreign_key = True
    with pytest.raises(KafkaError) as raised:
        admin.require_topic(world.oauth(), topic)
    assert raised.value.fields["reason"] == "token"


def test_a_wrong_secret_is_named_and_not_shown(world: World, topic: str) -> None:
    with pytest.raises(KafkaError) as raised:
        admin.require_topic(world.oauth(client_secret="{{secrets/s/wrong}}"), topic)
    assert "refuses the client orders (HTTP 401: invalid_client)" in raised.value.cause
    assert "hunter2" not in f"{raised.value} {raised.value.fields}"


@pytest.mark.parametrize(
    "changed",
    ["claims", pytest.param("secret", marks=pytest.mark.thorough("another refusal of the same server"))],
)
def test_a_query_of_spark_that_is_refused_has_one_sentence(
    world: World, spark: SparkSession, tmp_path: Path, topic: str, changed: str
) -> None:
    admin.ensure_topic(world.oauth(), topic, 1)
    if changed == "claims":
        world.oidc.claims = {"aud": "other"}
        # Kafka's clients in a JVM share the token of a login, and Spark keeps producers for ten minutes.
        kafka, cause = world.oauth(scope="other"), "the broker refuses the login"
    else:
        kafka = world.oauth(client_secret="{{secrets/s/wrong}}")
        cause = "Kafka's client cannot log in"
    written = stream(spark, kafka, topic).writeStream.format("noop").trigger(availableNow=True)
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("refused").start()
    with pytest.raises(KafkaError) as raised:
        await_caught_up(query, "availableNow")
    assert raised.value.cause == f"query refused stopped: {cause}"
    assert "hunter2" not in str(raised.value)


@pytest.mark.slow("waits until a token has ended")
def test_tokens_are_renewed_while_a_query_and_a_client_run(
    world: World, spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    # A login without a token of an earlier test, which is valid for five minutes: see above.
    kafka = world.oauth(scope="renewed")
    admin.ensure_topic(kafka, topic, 1)
    world.oidc.lifetime = 10
    world.oidc.requests.clear()
    written = stream(spark, kafka, topic).writeStream.format("memory").queryName(topic.replace("-", "_"))
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    client = AdminClient(client_settings(kafka))
    try:
        produce(kafka, topic, "before")
        query.processAllAvailable()
        client.list_topics(timeout=60)
        ends = [request.expires_at for request in world.oidc.requests if request.expires_at]
        wait_until(lambda: time.time() > max(ends) + REAUTHENTICATION)
        produce(kafka, topic, "after")
        query.processAllAvailable()
        assert topic in client.list_topics(timeout=60).topics
        values = [row.value for row in spark.table(topic.replace("-", "_")).collect()]
        assert sorted(values) == ["after", "before"]
        wait_until(lambda: _renewing_clients(world.oidc, max(ends)) == {"Java", "librdkafka"})
    finally:
        query.stop()


@pytest.mark.slow("waits until a token has ended")
def test_a_token_of_a_cloud_logs_in_and_is_renewed_in_python(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    oauth = world.oauth().oauth
    assert oauth is not None
    server = OAuthClient.from_settings(oauth)
    ends: list[float] = []

    def get_token(_scope: str) -> SimpleNamespace:
        token = server.request_token()
        ends.append(token.expires_at)
        return SimpleNamespace(token=token.text, expires_on=token.expires_at)

    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    monkeypatch.setattr(
        cloud_tokens, "_service_credential", lambda _name: SimpleNamespace(get_token=get_token)
    )
    kafka = KafkaSettings(
        bootstrap_servers=world.oauth_address, service_credential="orders", ca_file=world.server.authority
    )
    world.oidc.lifetime = 10
    admin.ensure_topic(kafka, topic, 2)
    client = AdminClient(client_settings(kafka))
    produce(kafka, topic, "python")
    assert consume(kafka, topic, 1) == ["python"]
    assert topic in client.list_topics(timeout=60).topics
    first = max(ends)
    wait_until(lambda: time.time() > first + REAUTHENTICATION)
    assert topic in client.list_topics(timeout=60).topics
    assert max(ends) > first


def _renewing_clients(oidc: OidcServer, end: float) -> set[str]:
    """Return the clients of the scope `renewed` with a token that is valid beyond a time."""
    granted = [request for request in oidc.requests if request.expires_at and request.expires_at > end]
    renewals = [request for request in granted if request.form["scope"] == "renewed"]
    return {"Java" if request.user_agent.startswith("Java/") else "librdkafka" for request in renewals}


@contextmanager
def logged_in(world: World, login: str, folder: Path, topic: str) -> Iterator[tuple[Project, Settings]]:
    """Make a project that logs in at broker and registry with tokens or a certificate; load its pipeline."""
    files = {"file": str(world.client.certificate), "key_file": str(world.client.key)}
    with FaultProxy(world.registry, certificate=world.server, clients=world.client.authority) as proxy:
        if login == "tokens":
            # A login of the JVM without a token of another test.
            kafka, proxy.bearer = world.oauth(scope=topic), world.oidc.accepts
            assert kafka.oauth is not None
            way = {"oauth": kafka.oauth.model_dump(mode="json", exclude_none=True) | OAUTH_SECRET}
        else:
            kafka, proxy.bearer = world.mtls(), REGISTRY_TOKEN
            way = {"token": "{{secrets/s/token}}"}
        authority = str(world.server.authority)
        registry = {"url": proxy.url, "ca_file": authority, "client_certificate": files, **way}
        project = make_project(folder, world, kafka, registry)
        pipeline = {
            "topic": topic,
            "view": "numbers",
            "trigger": "1 second",
            "starting_offsets": "earliest",
            "consumer_group": f"{topic}-group",
            "table_path": "/mnt/datalake/numbers",
            "checkpoint_path": "/mnt/datalake/checkpoints/numbers",
        }
        (project.folder / "conf" / "pipelines" / "numbers.yaml").write_text(yaml.safe_dump(pipeline))
        settings = load_settings(
            "numbers",
            {"env": "logins"},
            secrets=lambda _scope, key: project.secrets[key],
            conf=project.folder / "conf",
        )
        admin.ensure_topic(kafka, topic, 1)
        yield project, settings


def send(settings: Settings, text: str, *numbers: int) -> None:
    """Register a schema, and send records of it."""
    topic = settings.pipeline.topic
    registry = SchemaRegistryClient.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", text)
    producer = Producer(client_settings(settings.kafka))
    for number in numbers:
        producer.produce(topic, value=right(schema_id, number))
    assert producer.flush(120) == 0


@pytest.mark.slow("an ingest and its audit for each login")
@pytest.mark.parametrize("login", ["tokens", "certificate"])
def test_an_ingest_its_audit_and_its_consumer_group_log_in_at_broker_and_registry(
    world: World, spark: SparkSession, tmp_path: Path, topic: str, login: str
) -> None:
    with logged_in(world, login, tmp_path / "p", topic) as (_, settings):
        send(settings, SCHEMA, 0, 1, 2)
        query = start_ingest(spark, settings)
        query.processAllAvailable()
        query.stop()
        audit_ingest(spark, settings).require_ok()
        assert create_view(spark, settings).count() == 3
        consumer = Consumer(client_settings(settings.kafka) | {"group.id": f"{topic}-group"})
        (committed,) = consumer.committed([TopicPartition(topic, 0)], 60)
        consumer.close()
    assert committed.offset == 3


@pytest.mark.slow("waits until a token has ended")
def test_a_token_for_the_registry_is_renewed_while_an_ingest_runs(
    world: World, spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    world.oidc.lifetime = 10
    with logged_in(world, "tokens", tmp_path / "p", topic) as (_, settings):
        send(settings, SCHEMA, 0)
        query = start_ingest(spark, settings)
        query.processAllAvailable()
        end = max(request.expires_at or 0 for request in world.oidc.requests)
        wait_until(lambda: time.time() > end)
        # The query has to ask for the schema of this record.
        send(settings, json.dumps(json.loads(SCHEMA) | {"doc": "of later"}), 1)
        query.processAllAvailable()
        query.stop()
        assert create_view(spark, settings).count() == 2


def look_into_spark(folder: str) -> None:
    """Print every view of an ingest; for its own process."""
    with spark_views.shown(Path(folder), "numbers", {"env": "logins"}, _secret_of_the_environment):
        pass


def _secret_of_the_environment(_scope: str, key: str) -> str:
    return os.environ[_variable(key)]


@pytest.mark.slow("a cold driver with every log open")
@pytest.mark.parametrize("login", ["tokens", "certificate"])
def test_no_secret_of_a_login_is_in_plans_progress_settings_ui_and_logs_of_spark(
    world: World, tmp_path: Path, topic: str, login: str
) -> None:
    probe = tmp_path / "probe"
    with logged_in(world, login, tmp_path / "p", topic) as (project, settings):
        send(settings, SCHEMA, 0)
        imported = "from tests.integration.kafka.test_logins import look_into_spark"
        code = spark_views.chatty(probe)
        done = project.python("-c", f"{code}; {imported}; look_into_spark({str(probe)!r})")
    (probe / "terminal.log").write_text(done.stdout + done.stderr, "utf-8")
    shown, log = succeeded(done), (probe / "driver.log").read_text("utf-8")
    # The views know of the login, so that they could have shown it.
    name = "sasl.jaas.config" if login == "tokens" else "ssl.keystore.key"
    assert f"kafka.{name}" in shown
    assert f"{name} = [hidden]" in log
    key = jvm_login(world.mtls())["ssl.keystore.key"].splitlines()[1:-1]
    secrets = [
        world.oidc.client_secret,
        REGISTRY_TOKEN,
        *key,
        *world.client.key.read_text().splitlines()[1:-1],
    ]
    assert leaks(probe, [Secret((secret, secret)) for secret in secrets]) == []


# The console consumer


@dataclass(frozen=True)
class Project:
    """A user's project with an environment `logins`."""

    folder: Path
    secrets: Mapping[str, str]

    def consume(self, topic: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "workbench", "consume", topic, "-p", "env=logins", *options)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the project's folder."""
        variables = {
            "WORKBENCH_HOME": str(self.folder / "home"),
            "PYTHONPATH": str(PROJECT),
            "COLUMNS": "500",
        }
        secrets = {_variable(key): value for key, value in self.secrets.items()}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=without_workbench() | variables | secrets,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )


def _variable(key: str) -> str:
    return f"TOPICLAKE_SECRET_S_{key.replace('-', '_').upper()}"


def make_project(folder: Path, world: World, kafka: KafkaSettings, registry: Mapping[str, Any]) -> Project:
    for name in ("notebooks", "conf"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("secrets.yaml"))
    for name in ("jars", "data"):
        (folder / name).symlink_to(PROJECT / name)
    section = {
        name: value
        for name, value in kafka.model_dump(mode="json", exclude={"consumer", "producer"}).items()
        if value is not None
    }
    if kafka.oauth is not None:
        section["oauth"] = kafka.oauth.model_dump(mode="json", exclude_none=True) | OAUTH_SECRET
    content = {
        "kafka": section,
        "schema_registry": registry,
        "storage": {"source": folder.as_uri(), "mount_point": "/mnt/datalake"},
    }
    (folder / "conf" / "logins.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return Project(folder, {"oauth-secret": world.oidc.client_secret, "token": REGISTRY_TOKEN})


@pytest.mark.slow("a cold driver")
def test_the_console_consumer_logs_in_with_a_token(world: World, tmp_path: Path, topic: str) -> None:
    kafka = world.oauth()
    admin.ensure_topic(kafka, topic, 1)
    produce(kafka, topic, "one", "two")
    project = make_project(tmp_path / "p", world, kafka, {"url": world.registry})
    done = project.consume(topic, "--from-beginning", "--max-messages", "2")
    assert succeeded(done).split() == ["one", "two"]
    assert world.oidc.client_secret not in done.stdout + done.stderr


def test_the_console_consumer_asks_a_registry_with_token_and_certificate(
    world: World, tmp_path: Path, topic: str
) -> None:
    kafka = world.mtls()
    admin.ensure_topic(kafka, topic, 1)
    with FaultProxy(world.registry, certificate=world.server, clients=world.client.authority) as proxy:
        proxy.bearer = REGISTRY_TOKEN
        registry = {
            "url": proxy.url,
            "ca_file": str(world.server.authority),
            "token": "{{secrets/s/token}}",
            "client_certificate": {"file": str(world.client.certificate), "key_file": str(world.client.key)},
        }
        # Nobody registered this schema: the registry's own answer shows that the login is accepted.
        producer = Producer(client_settings(kafka))
        producer.produce(topic, value=frame(2**30, b"\2"))
        assert producer.flush(120) == 0
        project = make_project(tmp_path / "p", world, kafka, registry)
        done = project.consume(topic, "--avro", "--from-beginning", "--max-messages", "1")
    assert done.returncode == 1
    assert re.search(
        rf"the schema registry answered 404 to https://localhost:\d+\S*/schemas/ids/{2**30}", done.stderr
    )
    assert REGISTRY_TOKEN not in done.stdout + done.stderr
