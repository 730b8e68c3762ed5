"""The audit that proves that each record of a topic is in exactly one place.

It reads the stored data of the ingest, and uses none of the code that classifies records. Only to compare the
keys of change data, it decodes records again (`changes`).
"""
