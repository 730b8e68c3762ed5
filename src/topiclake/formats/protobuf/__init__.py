"""Protobuf with a schema of the registry."""

from topiclake.errors import require_extra

require_extra("protobuf", "google.protobuf")
