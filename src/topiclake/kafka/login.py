"""The login of the configuration, as Kafka's clients on the JVM and librdkafka want it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topiclake.config.kafka import KafkaSettings
from topiclake.config.login import OAuthClientSettings
from topiclake.errors import ConfigError, KafkaError, LoginError
from topiclake.kafka.cloud_tokens import CloudToken
from topiclake.login.certificate import read_certificate
from topiclake.login.oauth import OAuthClient
from topiclake.session import is_databricks

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_CALLBACK = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_MSK = "software.amazon.msk.auth.iam"
#: The first option of a login: in a log at DEBUG, Spark hides it and all options after it, and no other one.
#: Source: KafkaRedactionUtil of Spark 4.1.
_HIDING = "password"


def jvm_login(kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings of TLS and SASL of a client on the JVM; raises as `read_certificate`."""
    settings: dict[str, str] = {}
    if kafka.ca_file is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.ca_file)}
    if kafka.client_certificate is not None:
        certificate = read_certificate(kafka.client_certificate)
        # As text: executors need no file, and the key has no password that a plan could show.
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate.chain,
            "ssl.keystore.key": certificate.key,
        }
    if kafka.is_sasl:
        settings |= {"sasl.mechanism": kafka.sasl_mechanism, **_jvm_sasl(kafka)}
    return settings


def _jvm_sasl(kafka: KafkaSettings) -> dict[str, str]:
    """Return the login as JAAS wants it; Databricks ships the classes under other packages."""
    kafka_package, msk_package = ("kafkashaded.", "shadedmskiam.") if is_databricks() else ("", "")
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        return {
            "sasl.jaas.config": f"{msk_package}{_MSK}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{msk_package}{_MSK}.IAMClientCallbackHandler",
        }
    module = kafka_package + _LOGIN_MODULES[kafka.sasl_mechanism]
    if kafka.oauth is None:
        username, password = _password_login(kafka)
        return {"sasl.jaas.config": _jaas(module, {_HIDING: password, "username": username})}
    return {
        "sasl.jaas.config": _jaas(module, _jaas_options(kafka.oauth)),
        "sasl.login.callback.handler.class": kafka_package + _OAUTH_CALLBACK,
        "sasl.oauthbearer.token.endpoint.url": kafka.oauth.token_url,
    }


def _jaas_options(oauth: OAuthClientSettings) -> dict[str, str]:
    options = {
        _HIDING: "",
        "clientId": oauth.client_id,
        "clientSecret": oauth.client_secret.reveal(),
    }
    if oauth.scope is not None:
        options["scope"] = oauth.scope
    if oauth.ca_file is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(oauth.ca_file)}
    return options | {f"extension_{name}": value for name, value in _extensions(oauth).items()}


def _jaas(module: str, options: Mapping[str, str]) -> str:
    return f"{module} required {' '.join(f'{name}={_quoted(value)}' for name, value in options.items())};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _extensions(oauth: OAuthClientSettings) -> dict[str, str]:
    """Return the extensions of SASL that Confluent Cloud asks for."""
    ids = {"logicalCluster": oauth.logical_cluster, "identityPoolId": oauth.identity_pool_id}
    return {name: value for name, value in ids.items() if value is not None}


def _password_login(kafka: KafkaSettings) -> tuple[str, str]:
    return (
        kafka.username.reveal() if kafka.username else "",
        kafka.password.reveal() if kafka.password else "",
    )


def python_login(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the settings of TLS and SASL of a confluent-kafka client.

    Raises:
        LoginError: The certificate cannot be used, or the cloud returns no token.
        PlatformError: A package for that is missing.
    """
    settings: dict[str, Any] = {}
    if kafka.ca_file is not None:
        settings["ssl.ca.location"] = str(kafka.ca_file)
    if kafka.client_certificate is not None:
        certificate = read_certificate(kafka.client_certificate)
        settings |= {"ssl.certificate.pem": certificate.chain, "ssl.key.pem": certificate.key}
    if kafka.service_credential is not None:
        settings |= {"security.protocol": "SASL_SSL", **_cloud_login(kafka)}
    elif kafka.is_sasl:
        settings |= _python_sasl(kafka)
    return settings


def _python_sasl(kafka: KafkaSettings) -> dict[str, Any]:
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        return _cloud_login(kafka)
    if kafka.oauth is not None:
        return {"sasl.mechanism": kafka.sasl_mechanism, **_oidc(kafka.oauth)}
    username, password = _password_login(kafka)
    return {
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": username,
        "sasl.password": password,
    }


def _oidc(oauth: OAuthClientSettings) -> dict[str, str]:
    """Return the login as librdkafka wants it, which renews tokens in a separate thread."""
    extensions = ",".join(f"{name}={value}" for name, value in _extensions(oauth).items())
    optional = {
        "sasl.oauthbearer.scope": oauth.scope,
        "sasl.oauthbearer.extensions": extensions or None,
        "https.ca.location": str(oauth.ca_file) if oauth.ca_file else None,
    }
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        "sasl.oauthbearer.client.id": oauth.client_id,
        "sasl.oauthbearer.client.secret": oauth.client_secret.reveal(),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _cloud_login(kafka: KafkaSettings) -> dict[str, Any]:
    require_databricks(kafka)
    callback = CloudToken.from_settings(kafka)
    # Once here, where an error is raised: a client would repeat it for ten seconds without its cause.
    callback()
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": callback}


def require_databricks(kafka: KafkaSettings) -> None:
    """Raise a ConfigError if the login is a service credential, and this is not Databricks."""
    if kafka.service_credential is not None and not is_databricks():
        raise ConfigError(
            f"kafka.service_credential is {kafka.service_credential}, which needs Databricks",
            "set kafka.sasl_mechanism to AWS_MSK_IAM, or set kafka.oauth",
            key="kafka.service_credential",
            reason="not_databricks",
        )


def refused(kafka: KafkaSettings) -> KafkaError:
    """Say why the broker refuses the login. It names no cause itself, but a token shows some."""
    server, name = kafka.bootstrap_servers, kafka.sasl_mechanism
    reason, cause = "login", f"the broker at {server} refuses the login ({name})"
    remedy = "check the secrets kafka.username and kafka.password"
    if kafka.service_credential is not None:
        cause = f"the broker at {server} refuses the service credential {kafka.service_credential}"
        remedy = "check the permissions of the service credential on the cluster"
    elif name == "AWS_MSK_IAM":
        remedy = "check the role of this machine: it needs kafka-cluster:Connect on the cluster"
    elif kafka.oauth is not None:
        reason, (cause, remedy) = "token", _token_refused(server, kafka.oauth)
    return KafkaError(cause, remedy, server=server, reason=reason)


def _token_refused(server: str, oauth: OAuthClientSettings) -> tuple[str, str]:
    """Return cause and remedy, after a look at a token of the same kind."""
    try:
        token = OAuthClient.from_settings(oauth).request_token()
    except LoginError as error:
        return f"no token for the broker at {server}: {error.cause}", error.remedy
    client, ids = f"the client {oauth.client_id}", ""
    if oauth.logical_cluster:
        client += f" for the cluster {oauth.logical_cluster}"
        ids = "logical_cluster, identity_pool_id and "
    return (
        f"the broker at {server} refuses the token of {client}: {token.problem()}",
        f"check {ids}scope of kafka.oauth, the clocks, and what the broker expects",
    )
