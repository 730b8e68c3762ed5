"""Each login as Spark's connector and as librdkafka get it, and the errors of a broker that refuses one."""

import base64
import re
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.error import KafkaError as ClientError

from tests.services.oidc import OidcServer
from tests.support.certificates import client_certificate, keystore
from topiclake.config.kafka import KafkaSettings
from topiclake.errors import ConfigError, LoginError, PlatformError
from topiclake.kafka import cloud_tokens, source, writer
from topiclake.kafka.client import client_settings, jvm_client_settings, unreachable
from topiclake.kafka.cloud_tokens import AwsKeys, CloudToken, msk_token
from topiclake.session import LOGIN_TEXT, REDACTION

SECRET = 'hunter2"\\'
OAUTH = {
    "token_url": "https://login.example/token",
    "client_id": "orders",
    "client_secret": "{{secrets/s/oauth}}",
}
MSK = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
SECURITY = "org.apache.kafka.common.security.oauthbearer"


def settings(**given):
    return KafkaSettings.model_validate(
        {"bootstrap_servers": "broker:9093", "security_protocol": "SASL_SSL"} | given,
        context={"secrets": lambda _scope, _key: SECRET},
    )


def with_oauth(**given):
    return settings(sasl_mechanism="OAUTHBEARER", oauth=OAUTH | given)


def of_spark(kafka):
    """The options of the login, which source and sink share."""
    of_both = [source.range_options(kafka), writer.writer_options(kafka, "orders")]
    login = re.compile(r"kafka\.(ssl|sasl|security)\.|databricks\.")
    found = [{name: value for name, value in options.items() if login.match(name)} for options in of_both]
    assert found[0] == found[1]
    return found[0]


def of_python(kafka):
    """The settings of the login; librdkafka accepts them."""
    found = client_settings(kafka)
    AdminClient(found)
    common = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SASL_SSL", "log_level": 0}
    return {name: value for name, value in found.items() if common.get(name) != value}


@pytest.fixture
def databricks(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")


# Certificates


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("form", ["pem", "keystore"])
def test_a_client_certificate_is_text_without_a_password(tmp_path, protocol, form):
    made = client_certificate(tmp_path / "client")
    pem = {"file": str(made.certificate), "key_file": str(made.key)}
    store = {"file": str(keystore(made, SECRET)), "password": "{{secrets/s/p}}"}
    kafka = settings(security_protocol=protocol, client_certificate=pem if form == "pem" else store)
    spark, python = of_spark(kafka), client_settings(kafka)
    assert spark["kafka.ssl.keystore.type"] == "PEM"
    assert spark["kafka.ssl.keystore.certificate.chain"] == made.certificate.read_text()
    assert spark["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----\n")
    assert python["ssl.certificate.pem"] == spark["kafka.ssl.keystore.certificate.chain"]
    assert python["ssl.key.pem"] == spark["kafka.ssl.keystore.key"]
    assert not [name for name in [*spark, *python] if name.endswith(("keystore.password", "key.password"))]
    if protocol == "SSL":
        AdminClient(python)


# OAuth


def test_client_credentials_have_the_names_of_both_clients():
    kafka = with_oauth(scope="api://kafka/.default")
    assert of_spark(kafka) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f'{SECURITY}.OAuthBearerLoginModule required password="" clientId="orders" '
        r'clientSecret="hunter2\"\\" scope="api://kafka/.default";',
        "kafka.sasl.login.callback.handler.class": f"{SECURITY}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": OAUTH["token_url"],
    }
    assert of_python(kafka) == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": OAUTH["token_url"],
        "sasl.oauthbearer.client.id": "orders",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": "api://kafka/.default",
    }


def test_confluent_cloud_gets_its_ids_as_extensions():
    kafka = with_oauth(logical_cluster="lkc-1a2b3c", identity_pool_id="pool-x1")
    jaas = of_spark(kafka)["kafka.sasl.jaas.config"]
    assert jaas.endswith(' extension_logicalCluster="lkc-1a2b3c" extension_identityPoolId="pool-x1";')
    extensions = of_python(kafka)["sasl.oauthbearer.extensions"]
    assert extensions == "logicalCluster=lkc-1a2b3c,identityPoolId=pool-x1"


def test_the_oauth_server_has_authorities_of_its_own(tmp_path):
    authority = client_certificate(tmp_path / "client").authority
    kafka = with_oauth(ca_file=str(authority))
    jaas = of_spark(kafka)["kafka.sasl.jaas.config"]
    assert jaas.endswith(f' ssl.truststore.type="PEM" ssl.truststore.location="{authority}";')
    assert of_python(kafka)["https.ca.location"] == str(authority)


def test_databricks_has_its_own_packages(databricks):
    of_oauth = of_spark(with_oauth())
    assert of_oauth["kafka.sasl.jaas.config"].startswith(f"kafkashaded.{SECURITY}.OAuthBearerLoginModule ")
    assert of_oauth["kafka.sasl.login.callback.handler.class"] == (
        f"kafkashaded.{SECURITY}.OAuthBearerLoginCallbackHandler"
    )
    of_msk = of_spark(settings(sasl_mechanism="AWS_MSK_IAM", bootstrap_servers=MSK))
    assert (
        of_msk["kafka.sasl.jaas.config"]
        == "shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule required;"
    )


# Clouds


class Session:
    """A session of botocore."""

    def __init__(self, *keys):
        self.keys = keys

    def get_credentials(self):
        if not self.keys:
            return None
        access_key, secret_key, token = self.keys
        frozen = SimpleNamespace(access_key=access_key, secret_key=secret_key, token=token)
        return SimpleNamespace(get_frozen_credentials=lambda: frozen)


@pytest.fixture
def provider(monkeypatch):
    """Let a provider of a cloud be the machine's, and the one of each service credential."""

    def use(found):
        monkeypatch.setattr(cloud_tokens, "_aws_session", lambda: found)
        monkeypatch.setattr(cloud_tokens, "_service_credential", lambda _name: found)

    return use


@pytest.mark.parametrize(
    ("token", "signature"),
    [
        (None, "7cc178453342e479def8e0e69cbff443ca929b5b0426af0f4b64554172c7195d"),
        ("a+b/c==", "5b7d7ea0457b204e6fccbfd96afc8550377c195452a4f193db2bb2ef0446e219"),
    ],
)
def test_the_request_for_msk_has_the_signature_of_botocore(token, signature):
    # botocore 1.44.8 signed the same request: SigV4QueryAuth(…, "kafka-cluster", "eu-west-1", expires=900).
    keys = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    text = msk_token(keys, "eu-west-1", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    assert "=" not in text
    url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&")
    assert url.endswith(f"&X-Amz-Signature={signature}&User-Agent=topiclake")
    assert ("X-Amz-Security-Token=a%2Bb%2Fc%3D%3D" in url) is (token is not None)
    assert keys.secret_key not in url


def test_msk_has_a_class_on_the_jvm_and_a_token_in_python(provider):
    provider(Session("AKID", "secret", None))
    kafka = settings(sasl_mechanism="AWS_MSK_IAM", bootstrap_servers=MSK)
    assert of_spark(kafka) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }
    python = of_python(kafka)
    assert python["sasl.mechanism"] == "OAUTHBEARER"
    callback = python["oauth_cb"]
    before = datetime.now(timezone.utc).timestamp()
    assert before + 899 < callback("")[1] < before + 960
    # Equal settings share a client, and no key is part of them.
    assert callback == client_settings(kafka)["oauth_cb"]
    assert hash(callback) == hash(client_settings(kafka)["oauth_cb"])
    assert "secret'" not in repr(callback)


def test_a_machine_without_keys_of_aws_is_named(provider):
    provider(Session())
    with pytest.raises(LoginError) as raised:
        client_settings(settings(sasl_mechanism="AWS_MSK_IAM", aws_region="eu-west-1"))
    assert raised.value.fields == {"reason": "no_keys"}


def test_a_missing_botocore_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    cloud_tokens._aws_session.cache_clear()
    with pytest.raises(PlatformError) as raised:
        CloudToken("eu-west-1", "", None)()
    assert raised.value.fields == {"module": "botocore", "reason": "missing"}


def service_credential(**given):
    return KafkaSettings(service_credential="orders", **({"bootstrap_servers": MSK} | given))


@pytest.mark.usefixtures("databricks")
def test_a_service_credential_is_an_option_of_spark_and_a_token_in_python(provider):
    provider(Session("AKID", "secret", None))
    assert of_spark(service_credential()) == {"databricks.serviceCredential": "orders"}
    python = of_python(service_credential())
    assert {*python} == {"sasl.mechanism", "oauth_cb"}
    with pytest.raises(LoginError) as raised:
        client_settings(service_credential(bootstrap_servers="broker:9098"))
    assert raised.value.fields == {"reason": "region"}


@pytest.mark.usefixtures("databricks")
def test_a_service_credential_of_azure_asks_for_event_hubs(provider):
    asked = []

    def get_token(scope):
        asked.append(scope)
        return SimpleNamespace(token="t", expires_on=1_900_000_000)

    provider(SimpleNamespace(get_token=get_token))
    kafka = service_credential(bootstrap_servers="orders.servicebus.windows.net:9093")
    assert client_settings(kafka)["oauth_cb"]("") == ("t", 1_900_000_000.0)
    assert set(asked) == {"https://orders.servicebus.windows.net/.default"}


@pytest.mark.usefixtures("databricks")
def test_a_service_credential_of_another_cloud_is_refused(provider):
    provider(object())
    with pytest.raises(LoginError) as raised:
        client_settings(service_credential())
    assert raised.value.fields == {"service_credential": "orders", "reason": "cloud"}


@pytest.mark.parametrize("client", [client_settings, jvm_client_settings, of_spark])
def test_a_service_credential_needs_databricks(client, monkeypatch):
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    with pytest.raises(ConfigError) as raised:
        client(service_credential())
    assert raised.value.fields == {"key": "kafka.service_credential", "reason": "not_databricks"}


# Refusals


class Problem:
    """An error of librdkafka."""

    def __init__(self, code, text=""):
        self._code, self._text = code, text

    def code(self):
        return self._code

    def str(self):
        return self._text


AUTHENTICATION = Problem(ClientError._AUTHENTICATION)


@pytest.fixture
def oidc():
    with OidcServer() as server:
        yield server


def refused(oidc, **given):
    kafka = KafkaSettings.model_validate(
        {
            "bootstrap_servers": "broker:9093",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "oauth": OAUTH | {"token_url": oidc.token_url} | given,
        },
        context={"secrets": lambda _scope, _key: oidc.client_secret},
    )
    error = unreachable(kafka, [AUTHENTICATION])
    assert oidc.client_secret not in str(error)
    return error


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1_700_000_000}, "it expired at 2023-11-14T22:13:20Z"),
        ({"nbf": 4_000_000_000}, "it is not valid before 2096-10-02T07:06:40Z"),
        ({"aud": "other", "iss": "i"}, "its audience is 'other', and its issuer 'i'"),
    ],
)
def test_a_refused_token_is_explained_by_its_claims(oidc, claims, problem):
    oidc.claims = claims
    error = refused(oidc)
    assert error.cause == f"the broker at broker:9093 refuses the token of the client orders: {problem}"
    assert error.fields == {"server": "broker:9093", "reason": "token"}
    assert "cluster" not in error.remedy


def test_the_ids_of_confluent_cloud_are_to_be_checked_too(oidc):
    error = refused(oidc, logical_cluster="lkc-1")
    assert "refuses the token of the client orders for the cluster lkc-1: " in error.cause
    assert "check logical_cluster, identity_pool_id and scope" in error.remedy


def test_an_oauth_server_that_returns_no_token_is_named(oidc):
    error = refused(oidc, client_id="other")
    assert error.cause == (
        f"no token for the broker at broker:9093: the OAuth server at {oidc.token_url} refuses the client "
        "other (HTTP 401: invalid_client)"
    )


def test_refused_logins_of_clouds_name_what_to_check():
    msk = unreachable(settings(sasl_mechanism="AWS_MSK_IAM", bootstrap_servers=MSK), [AUTHENTICATION])
    assert "kafka-cluster:Connect" in msk.remedy
    databricks = unreachable(service_credential(), [AUTHENTICATION])
    assert databricks.cause == f"the broker at {MSK} refuses the service credential orders"


@pytest.mark.parametrize(
    "alert", ["bad certificate", "certificate required", "certificate unknown", "unknown ca"]
)
def test_a_refused_certificate_is_named(alert):
    text = (
        f"ssl://broker:9093/bootstrap: Receive failed: ssl/record: tlsv13 alert {alert}: SSL alert number 116"
    )
    error = unreachable(settings(security_protocol="SSL"), [Problem(ClientError._TRANSPORT, text)])
    assert error.fields == {"server": "broker:9093", "reason": "certificate"}


# What Spark shows


def test_plans_show_no_login_and_no_key(tmp_path):
    made = client_certificate(tmp_path / "client")
    pem = {"file": str(made.certificate), "key_file": str(made.key)}
    options = of_spark(settings(sasl_mechanism="OAUTHBEARER", oauth=OAUTH, client_certificate=pem))
    for name in ("kafka.sasl.jaas.config", "kafka.ssl.keystore.key"):
        assert re.search(REDACTION, name)
    # Python 3.10 has no possessive quantifiers, which only save time.
    pattern = LOGIN_TEXT.replace("[^-]++", "[^-]+").replace("++", "").replace("*+", "*")
    shown = re.sub(pattern, "(redacted)", str(options).replace("\\n", "\n"))
    assert "hunter2" not in shown
    key = options["kafka.ssl.keystore.key"].splitlines()
    assert not [line for line in key[1:-1] if line in shown]
    assert made.certificate.read_text() in shown
