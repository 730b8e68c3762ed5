"""The audit that proves that each record of a topic is in exactly one place.

It reads the stored data of the ingest, and uses none of the code that classifies records.
"""
