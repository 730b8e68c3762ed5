"""Logins of a configuration: what belongs together, and what is refused by name."""

import pytest
from pydantic import ValidationError

from topiclake.config.kafka import KafkaSettings
from topiclake.config.schema_registry import SchemaRegistrySettings

SECRET = "{{secrets/s/k}}"
OAUTH = {"token_url": "https://login.example/token", "client_id": "orders", "client_secret": SECRET}
BROKER = {"bootstrap_servers": "broker:9093"}
REGISTRY = {"url": "https://registry.example"}


def refused(model, given):
    with pytest.raises(ValidationError) as raised:
        model.model_validate(given)
    (problem,) = raised.value.errors()
    return problem["msg"].removeprefix("Value error, ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sasl_mechanism": "GSSAPI"}, "Kerberos (GSSAPI) is not supported"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER and the keys of oauth need each other"),
        ({"oauth": OAUTH}, "OAUTHBEARER and the keys of oauth need each other"),
        ({"oauth": OAUTH, "sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs security_protocol SASL_SSL"),
        (
            {
                "oauth": OAUTH,
                "sasl_mechanism": "OAUTHBEARER",
                "security_protocol": "SASL_SSL",
                "username": SECRET,
            },
            "OAUTHBEARER has no username and no password",
        ),
        (
            {"sasl_mechanism": "AWS_MSK_IAM", "security_protocol": "SASL_SSL"},
            "AWS_MSK_IAM needs aws_region: bootstrap_servers contains none",
        ),
        (
            {"client_certificate": {"file": "/c.pem"}},
            "client_certificate needs security_protocol SSL or SASL_SSL",
        ),
        (
            {"client_certificate": {"file": "/c.jks"}, "security_protocol": "SSL"},
            "must be PEM or PKCS#12: keytool -importkeystore",
        ),
        (
            {"service_credential": "c", "security_protocol": "SASL_SSL", "username": SECRET},
            "service_credential replaces security_protocol, username: remove one of the two",
        ),
        ({"consumer": {"ssl.keystore.location": "/c"}}, "kafka.client_certificate"),
        ({"consumer": {"sasl.oauthbearer.scope": "x"}}, "kafka.oauth"),
    ],
)
def test_a_login_that_does_not_fit_is_one_sentence(given, message):
    assert message in refused(KafkaSettings, BROKER | given)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/token",
        "http://localhost.example/token",
        "https://me:secret@login.example/token",
        "file:///etc/token",
    ],
)
def test_a_token_endpoint_has_https_and_no_login(url):
    assert refused(KafkaSettings, BROKER | {"oauth": OAUTH | {"token_url": url}}).startswith(
        "String should match"
    )


def test_the_region_of_msk_is_in_the_name_of_the_broker():
    given = {"sasl_mechanism": "AWS_MSK_IAM", "security_protocol": "SASL_SSL"}
    names = {
        "b-1.x.a1b2c3.c2.kafka.us-gov-west-1.amazonaws.com:9098": "us-gov-west-1",
        "boot-x.c1.kafka-serverless.eu-central-1.amazonaws.com:9098,b:1": "eu-central-1",
    }
    for name, region in names.items():
        assert KafkaSettings.model_validate(given | {"bootstrap_servers": name}).region == region
    named = KafkaSettings.model_validate(BROKER | given | {"aws_region": "eu-west-2"})
    assert named.region == "eu-west-2"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "https://glue.eu-west-1.amazonaws.com"}, "AWS Glue Schema Registry is not supported"),
        (
            {"url": "https://x.servicebus.windows.net/$schemagroups"},
            "the schema registry of Azure Event Hubs is not supported",
        ),
        ({"token": SECRET, "oauth": OAUTH}, "a registry has one login: remove all but one of token, oauth"),
        ({"username": SECRET, "token": SECRET}, "remove all but one of username, token"),
        (
            {"url": "http://registry", "client_certificate": {"file": "/c.pem"}},
            "client_certificate needs an url with https",
        ),
        ({"token": "hunter2"}, "must be a reference {{secrets/<scope>/<key>}}"),
    ],
)
def test_a_registry_that_does_not_fit_is_one_sentence(given, message):
    assert message in refused(SchemaRegistrySettings, REGISTRY | given)


def test_registries_with_similar_names_are_accepted():
    for url in ("https://glue.example/api", "https://servicebus.windows.net.example"):
        assert SchemaRegistrySettings(url=url).url == url
