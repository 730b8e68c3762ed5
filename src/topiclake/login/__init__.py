"""Tokens of OAuth servers and certificates of clients, by which brokers and registries know a client."""
