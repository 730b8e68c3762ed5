"""The proof that each record of a topic is in exactly one place.

Of the ingest it uses what is stored, nothing that decides.
"""
