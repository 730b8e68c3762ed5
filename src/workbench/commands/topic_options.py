"""Options that several commands share: parameters, and where a new pipeline reads and writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from topiclake.errors import ConfigError

assignment_option = click.option(
    "-p", "--parameter", "assignments", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)

_INTO = "Folder or store for table and checkpoint: ./lake, s3a://…, abfss://…, wasbs://…; or <schema>.<table>"

#: The options that have an effect without a broker of the user.
_WITHOUT_BROKER = ("topic", "into", "env", "value_format")


@dataclass(frozen=True)
class Request:
    """The options of the user; for an empty one, `init` proposes a value.

    Attributes:
        name: Name of the pipeline.
        topic: The topic.
        into: A folder or the address of a store, for table and checkpoint. Or the name of the table.
        env: An environment that exists, or the name of the new one.
        bootstrap: The broker's address; with one, a new environment is written.
        registry: The registry's address.
        kafka: Further keys of the section `kafka`: protocol and mechanism.
        ca_file: A PEM file with the authorities to trust.
        scope: The scope of the secrets; with one, this machine keeps no secret.
        logins: By key of the scope, such as `kafka-password`, the secret that the user typed.
        value_format: The format of the values.
    """

    name: str
    topic: str
    into: str = ""
    env: str = ""
    bootstrap: str = ""
    registry: str = ""
    kafka: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    scope: str = ""
    logins: Mapping[str, str] = field(default_factory=dict, repr=False)
    value_format: str = ""


def topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where a topic is and where its records go."""
    for option in reversed(
        (
            click.option("--topic", default="", help="The topic; by default the pipeline's name."),
            click.option("--into", default="", help=_INTO),
            click.option(
                "--env", default="", help="An environment, conf/<ENV>.yaml; with --bootstrap a new one."
            ),
            click.option("--bootstrap", default="", metavar="HOST:PORT", help="A broker of your own."),
            click.option("--registry", default="", metavar="URL", help="Its schema registry."),
            click.option("--username", default="", help="Login at the broker; the password is asked for."),
            click.option("--registry-username", default="", help="Login at the registry."),
            click.option(
                "--security-protocol",
                type=click.Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
                help="SASL_SSL with --username, else PLAINTEXT.",
            ),
            click.option(
                "--sasl-mechanism",
                type=click.Choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
                help="PLAIN by default.",
            ),
            click.option("--ca-file", default="", help="PEM file with the authorities to trust."),
            click.option("--scope", default="", help="Scope that has the secrets: none is stored here."),
            click.option(
                "--format",
                "value_format",
                type=click.Choice(("avro", "json", "json_schema", "protobuf", "text")),
                help="Format of the values, in place of the sample's.",
            ),
        )
    ):
        command = option(command)
    return command


def require_no_options(options: Mapping[str, Any], allowed: Collection[str], condition: str) -> None:
    """Refuse an option that would be ignored.

    Raises:
        ConfigError: An option that is not one of `allowed` is given; it has an effect only `condition`.
    """
    for name, value in options.items():
        if value and name not in allowed:
            option = "--format" if name == "value_format" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} has an effect only {condition}",
                f"leave {option} out, or topiclake init <new pipeline> --bootstrap <host:port> …",
                option=option,
                reason="no_effect",
            )


def make_request(name: str, options: Mapping[str, Any]) -> Request:
    """Return what the options ask for; passwords and keys of a store are asked for here.

    Raises:
        ConfigError: An option would be ignored.
    """
    if not options["bootstrap"]:
        require_no_options(options, _WITHOUT_BROKER, "with --bootstrap")
    texts = {key: value or "" for key, value in options.items()}
    kafka: dict[str, str] = {}
    logins: dict[str, str] = {}
    if texts["bootstrap"]:
        protocol = texts["security_protocol"] or ("SASL_SSL" if texts["username"] else "PLAINTEXT")
        kafka["security_protocol"] = protocol
        if protocol.startswith("SASL"):
            kafka["sasl_mechanism"] = texts["sasl_mechanism"] or "PLAIN"
            logins["kafka-username"] = texts["username"] or _prompt("username at the broker", hidden=False)
            logins["kafka-password"] = _prompt(f"password of {logins['kafka-username']} at the broker")
        else:
            login = {name: options[name] for name in ("username", "sasl_mechanism")}
            require_no_options(login, (), "with --security-protocol SASL_SSL or SASL_PLAINTEXT")
        if texts["registry_username"]:
            logins["registry-username"] = texts["registry_username"]
            logins["registry-password"] = _prompt(f"password of {texts['registry_username']} at the registry")
        logins |= _store_logins(texts["into"])
    return Request(
        name=name,
        topic=texts["topic"] or name,
        kafka=kafka,
        logins=logins,
        **{
            key: texts[key]
            for key in ("into", "env", "bootstrap", "registry", "ca_file", "scope", "value_format")
        },
    )


def _store_logins(into: str) -> dict[str, str]:
    """Ask for the credentials of a store; an S3 store may need none: the machine's role grants access."""
    if re.match(r"(wasb|abfs)s?:", into):
        return {"storage-sas-token": _prompt("SAS token of the container")}
    if into.startswith(("s3:", "s3a:")):
        access_key = _prompt("access key of the bucket (empty: what this machine has)", optional=True)
        if access_key:
            return {
                "storage-access-key": access_key,
                "storage-secret-key": _prompt("secret key of the bucket"),
            }
    return {}


def _prompt(question: str, *, hidden: bool = True, optional: bool = False) -> str:
    answer = click.prompt(
        question, hide_input=hidden, default="" if optional else None, show_default=False, err=True
    )
    return str(answer)
