"""Spark's values in Python's types, as fastavro gives them."""


def plain(value):
    """Spark's value in Python's types; a union of several types is the member that is there."""
    if hasattr(value, "asDict"):
        members = value.asDict()
        if members and all(name == f"member{n}" for n, name in enumerate(members)):
            return plain(next((each for each in members.values() if each is not None), None))
        return {name: plain(each) for name, each in members.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value
