"""Tokens by which the Python clients log in with an identity of a cloud: Amazon MSK and Azure Event Hubs.

Java has a class for Amazon's mechanism AWS_MSK_IAM. Other clients send the same signed request as the token
of OAUTHBEARER.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, reduce
from typing import Any, NamedTuple
from urllib.parse import quote

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import LoginError, PlatformError, TopiclakeError

#: Seconds for which Amazon accepts a signed request, at most.
LIFETIME_SECONDS = 900


class AwsKeys(NamedTuple):
    """The keys that sign a request; `token` belongs to temporary ones."""

    access_key: str
    secret_key: str
    token: str | None


@dataclass(frozen=True)
class CloudToken:
    """The callback `oauth_cb` of a Python client. Equal settings make equal callbacks, which share a client.

    Attributes:
        region: The AWS region of the cluster.
        scope: The scope of an Azure token.
        service_credential: The service credential of Databricks; None for the identity of this machine.
    """

    region: str | None
    scope: str
    service_credential: str | None

    @classmethod
    def from_settings(cls, kafka: KafkaSettings) -> CloudToken:
        """Build it from the configuration; the scope is that of Databricks for Event Hubs."""
        host = kafka.bootstrap_servers.partition(",")[0].rpartition(":")[0]
        return cls(kafka.region, f"https://{host}/.default", kafka.service_credential)

    def __call__(self, _config: str = "") -> tuple[str, float]:
        """Return a token, and when it ends in seconds since 1970.

        Raises:
            LoginError: The cloud returns no token, the machine has no keys of AWS, or the service credential
                is of another cloud.
            PlatformError: botocore is not installed.
        """
        try:
            return self._token()
        except TopiclakeError:
            raise
        except Exception as error:  # noqa: BLE001 (the clients of each cloud have separate errors)
            raise LoginError(
                f"the cloud returns no token ({type(error).__name__})",
                "check the role of this machine, or the grants of the service credential",
                service_credential=self.service_credential,
                reason="no_token",
            ) from None

    def _token(self) -> tuple[str, float]:
        name = self.service_credential
        provider = _aws_session() if name is None else _service_credential(name)
        if hasattr(provider, "get_token"):
            token = provider.get_token(self.scope)
            return token.token, float(token.expires_on)
        if not hasattr(provider, "get_credentials"):
            raise LoginError(
                f"the service credential {name} is neither of AWS nor of Azure",
                "set kafka.oauth with the client credentials of another application",
                service_credential=name,
                reason="cloud",
            )
        if self.region is None:
            raise LoginError(
                "the AWS region of the cluster is unknown", "set kafka.aws_region", reason="region"
            )
        now = datetime.now(timezone.utc)
        return msk_token(_keys(provider), self.region, now), now.timestamp() + LIFETIME_SECONDS


def msk_token(keys: AwsKeys, region: str, now: datetime) -> str:
    """Return the token for Amazon MSK: a URL signed by version 4 of AWS's signatures, in base64.

    Source: https://github.com/aws/aws-msk-iam-sasl-signer-python, and
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
    """
    host, moment = f"kafka.{region}.amazonaws.com", f"{now:%Y%m%dT%H%M%SZ}"
    scope = f"{moment[:8]}/{region}/kafka-cluster/aws4_request"
    parameters = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(LIFETIME_SECONDS),
        **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
        "X-Amz-SignedHeaders": "host",
    }
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{_sha256('')}"
    key = reduce(_hmac, scope.split("/"), f"AWS4{keys.secret_key}".encode())
    signature = _hmac(key, f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{_sha256(request)}").hex()
    url = f"https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent=topiclake"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _keys(session: Any) -> AwsKeys:  # noqa: ANN401 (botocore has no types)
    credentials = session.get_credentials()
    if credentials is None:
        raise LoginError(
            "this machine has no keys of AWS",
            "give it a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            reason="no_keys",
        )
    frozen = credentials.get_frozen_credentials()
    return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)


@lru_cache(maxsize=1)
def _aws_session() -> Any:  # noqa: ANN401 (botocore has no types)
    """Return the session that finds the machine's keys, and renews those of a role."""
    try:
        import botocore.session
    except ModuleNotFoundError:
        raise PlatformError(
            "botocore, which finds the keys of AWS, is not installed",
            "pip install botocore",
            module="botocore",
            reason="missing",
        ) from None
    return botocore.session.get_session()


def _service_credential(name: str) -> Any:  # noqa: ANN401 (each cloud has its class)
    # The import needs a workspace of Databricks.
    from databricks.sdk import runtime

    credentials: Any = runtime.dbutils.credentials
    return credentials.getServiceCredentialsProvider(name)
