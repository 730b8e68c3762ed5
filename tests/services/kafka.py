"""A broker with settings of a test: TLS and SASL for its clients, or what keeps it from starting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.host.ports import HOST
from workbench.services.kafka_broker import KafkaBroker


@dataclass(frozen=True)
class ConfiguredBroker(KafkaBroker):
    """The workbench's broker with more settings.

    The broker reaches itself on a separate listener. TLS and SASL on the listener for clients then need no
    certificate and no login of the broker.

    Attributes:
        properties: Broker settings in addition to the workbench's; `listener.name.client.…` for TLS and SASL.
        security_protocol: Of the listener for clients: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        client_config: What a confluent-kafka client needs besides the address.
    """

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    security_protocol: str = "PLAINTEXT"
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)

    port_names = (*KafkaBroker.port_names, "kafka-internal")

    def settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return what `server.properties` holds."""
        settings = super().settings(ports)
        internal = f"INTERNAL://{HOST}:{ports['kafka-internal']}"
        return settings | {
            "inter.broker.listener.name": "INTERNAL",
            "listeners": f"{settings['listeners']},{internal}",
            "advertised.listeners": f"{settings['advertised.listeners']},{internal}",
            "listener.security.protocol.map": (
                f"CLIENT:{self.security_protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            **self.properties,
        }

    def client_settings(self, ports: Mapping[str, int]) -> dict[str, Any]:
        """Return the settings of the client that asks the broker for its topics."""
        return super().client_settings(ports) | dict(self.client_config)
