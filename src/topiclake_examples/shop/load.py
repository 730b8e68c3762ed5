"""Random changes of the shop's tables, in several transactions at once."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import psycopg

from topiclake_examples.shop.tables import shop_connection

_Values = dict[str, Any]
_BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TRANSACTION = range(1, 6)
_ROLLBACKS = 0.03
#: Errors of transactions that collide; PostgreSQL has taken them back.
_COLLISIONS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.ForeignKeyViolation,
)


def _text(random: Random) -> str | None:
    """Return a text that is null, short, or too large for the row itself."""
    repeated = random.choice((0, 0, 1, 2, 150, 400))
    return "".join(random.choices("abcdefghij äß€\n", k=15)) * repeated if repeated else None


def _price(random: Random) -> str:
    return f"{random.randrange(10**6) / 100:.2f}"


def _customer(random: Random) -> _Values:
    return {
        "name": f"customer {random.randrange(1000)}",
        "email": random.choice((None, f"c{random.randrange(1000)}@example.org")),
        "credit": f"{random.randrange(-(10**7), 10**7) / 100:.2f}",
        "birthday": (_BEGIN - timedelta(days=random.randrange(30_000))).date(),
        "tags": random.choice((None, [], ["new", None, "vip"])),
        "notes": _text(random),
        "photo": random.choice((None, random.randbytes(16), random.randbytes(2_500))),
        "moment": _moment(random),
        "login_at": random.choice((None, _moment(random).replace(tzinfo=None))),
    }


def _product(random: Random) -> _Values:
    attributes = {"color": random.choice(("red", "blue")), "sizes": [1, 2.5, None]}
    return {
        "name": f"product {random.randrange(1000)}",
        "price": _price(random),
        "description": _text(random),
        "attributes": random.choice((None, json.dumps(attributes))),
        "is_active": random.random() < 0.9,
        "weight": random.choice((None, random.random())),
        "code": uuid.UUID(int=random.getrandbits(128)),
    }


def _order(random: Random) -> _Values:
    return {"status": random.choice(("new", "paid", "sent", "returned")), "moment": _moment(random)}


def _line(random: Random) -> _Values:
    return {"quantity": random.randrange(1, 100), "price": _price(random)}


def _review(random: Random) -> _Values:
    return {"stars": random.randrange(1, 6), "review": _text(random)}


def _nothing(random: Random) -> _Values:
    return {}


def _moment(random: Random) -> datetime:
    return _BEGIN + timedelta(microseconds=random.randrange(10**14))


#: By kind: its weight, its statement, and the function of its values. Each statement also has the keys
#: `id`, `new_id`, `order_id`, `new_order_id`, `line`, `sku` and `new_sku`, which may exist or not.
_STATEMENTS: Mapping[str, tuple[float, str, Callable[[Random], _Values]]] = {
    "insert_customer": (
        10,
        "INSERT INTO customers VALUES (%(id)s, %(name)s, %(email)s, %(credit)s, %(birthday)s, %(tags)s, "
        "%(notes)s, %(photo)s, %(moment)s, %(login_at)s) ON CONFLICT DO NOTHING",
        _customer,
    ),
    "insert_product": (
        3,
        "INSERT INTO products VALUES (%(sku)s, %(name)s, %(price)s, %(description)s, %(attributes)s, "
        "%(is_active)s, %(weight)s, %(code)s) ON CONFLICT DO NOTHING",
        _product,
    ),
    "insert_order": (
        14,
        "INSERT INTO orders SELECT %(order_id)s, id, %(status)s, %(moment)s FROM customers "
        "WHERE id = %(id)s ON CONFLICT DO NOTHING",
        _order,
    ),
    "insert_line": (
        16,
        "INSERT INTO order_lines SELECT orders.id, %(line)s, sku, %(quantity)s, %(price)s "
        "FROM orders, products WHERE orders.id = %(order_id)s AND sku = %(sku)s ON CONFLICT DO NOTHING",
        _line,
    ),
    "insert_review": (
        8,
        "INSERT INTO reviews SELECT %(id)s, sku, %(stars)s, %(review)s FROM products "
        "WHERE sku = %(sku)s ON CONFLICT DO NOTHING",
        _review,
    ),
    # These leave the large values as they are.
    "update_customer": (
        12,
        "UPDATE customers SET credit = %(credit)s, login_at = %(login_at)s, email = %(email)s "
        "WHERE id = %(id)s",
        _customer,
    ),
    "update_product": (
        4,
        "UPDATE products SET price = %(price)s, is_active = %(is_active)s WHERE sku = %(sku)s",
        _product,
    ),
    "update_order": (14, "UPDATE orders SET status = %(status)s WHERE id = %(order_id)s", _order),
    "update_line": (
        10,
        "UPDATE order_lines SET quantity = %(quantity)s WHERE order_id = %(order_id)s AND line = %(line)s",
        _line,
    ),
    "update_review": (4, "UPDATE reviews SET stars = %(stars)s WHERE id = %(id)s", _review),
    # These change the large values.
    "rewrite_customer": (
        3,
        "UPDATE customers SET notes = %(notes)s, photo = %(photo)s, tags = %(tags)s WHERE id = %(id)s",
        _customer,
    ),
    "rewrite_product": (
        2,
        "UPDATE products SET description = %(description)s, attributes = %(attributes)s WHERE sku = %(sku)s",
        _product,
    ),
    "rewrite_review": (2, "UPDATE reviews SET review = %(review)s WHERE id = %(id)s", _review),
    "delete_customer": (1, "DELETE FROM customers WHERE id = %(id)s", _nothing),
    "delete_product": (0.1, "DELETE FROM products WHERE sku = %(sku)s", _nothing),
    "delete_order": (3, "DELETE FROM orders WHERE id = %(order_id)s", _nothing),
    "delete_line": (
        4,
        "DELETE FROM order_lines WHERE order_id = %(order_id)s AND line = %(line)s",
        _nothing,
    ),
    "delete_review": (3, "DELETE FROM reviews WHERE id = %(id)s", _nothing),
    # Other keys, with large values that PostgreSQL logs again because they were computed.
    "move_customer": (
        1,
        "UPDATE customers SET id = %(new_id)s, notes = notes || '', photo = photo || ''::bytea "
        "WHERE id = %(id)s",
        _nothing,
    ),
    "move_product": (
        0.5,
        "UPDATE products SET sku = %(new_sku)s, description = description || '' WHERE sku = %(sku)s",
        _nothing,
    ),
    "move_order": (2, "UPDATE orders SET id = %(new_order_id)s WHERE id = %(order_id)s", _nothing),
    # Another key, and the change under it lacks the large values.
    "move_review": (1, "UPDATE reviews SET id = %(new_id)s WHERE id = %(id)s", _nothing),
    "truncate_reviews": (0.02, "TRUNCATE reviews", _nothing),
    "truncate_orders": (0.005, "TRUNCATE orders, order_lines", _nothing),
    # Without a default: PostgreSQL would log no change of the rows that exist.
    "add_customer_level": (0.02, "ALTER TABLE customers ADD COLUMN IF NOT EXISTS level integer", _nothing),
    "add_order_note": (0.02, "ALTER TABLE orders ADD COLUMN IF NOT EXISTS note text", _nothing),
    "send_message": (0.2, "SELECT pg_logical_emit_message(true, 'shop', %(status)s)", _order),
}
#: The kinds of changes.
KINDS = tuple(_STATEMENTS)
#: The kinds that fill the tables.
INSERTS = tuple(kind for kind in KINDS if kind.startswith("insert_"))


def change_shop(
    conninfo: str,
    operations: int,
    *,
    sessions: int = 1,
    keys: int = 1_000,
    kinds: Collection[str] = KINDS,
    seed: int = 0,
) -> Counter[str]:
    """Change the shop's tables at random, in transactions of one to five statements.

    Keys are from a small range, so a key is inserted again after its deletion. Some transactions are rolled
    back on purpose, others because they collide. The same seed makes the same changes in one session.

    Args:
        conninfo: The database and the login, as psycopg accepts them.
        operations: Number of statements. A statement changes no row if its key does not exist.
        sessions: Number of transactions at once.
        keys: Number of keys of customers and reviews. There are as many orders, and a tenth of the products.
        kinds: Kinds of changes to choose from. After `move_review`, a change lacks the large text of a key
            that the topic has never had.
        seed: Seed of the random choices.

    Returns:
        By kind, the number of committed statements that changed a row; also `rolled_back` transactions.

    Raises:
        DatabaseError: The database cannot be reached, or refuses login or statement.
    """
    shares = [operations // sessions + (number < operations % sessions) for number in range(sessions)]

    def run(number: int) -> Counter[str]:
        random = Random(f"{seed} {number}")  # noqa: S311 - not for secrets
        return _change(conninfo, shares[number], keys, sorted(kinds), random)

    with ThreadPoolExecutor(sessions) as threads:
        return sum(threads.map(run, range(sessions)), Counter())


def _change(conninfo: str, operations: int, keys: int, kinds: list[str], random: Random) -> Counter[str]:
    changes: Counter[str] = Counter()
    weights = [_STATEMENTS[kind][0] for kind in kinds]
    with shop_connection(conninfo) as connection:
        while operations > 0:
            chosen = random.choices(kinds, weights, k=min(operations, random.choice(_TRANSACTION)))
            operations -= len(chosen)
            try:
                with connection.transaction():
                    changed = [kind for kind in chosen if _execute(connection, kind, keys, random)]
                    is_unwanted = random.random() < _ROLLBACKS
                    if is_unwanted:
                        raise psycopg.Rollback
            except _COLLISIONS:
                is_unwanted = True
            changes.update(["rolled_back"] if is_unwanted else changed)
    return changes


def _execute(connection: psycopg.Connection[Any], kind: str, keys: int, random: Random) -> bool:
    """Execute a statement with random keys and values; return whether it changed something."""
    _, statement, values = _STATEMENTS[kind]
    identifiers = {name: random.randrange(keys) for name in ("id", "new_id", "order_id", "new_order_id")}
    products = {name: f"P-{random.randrange(max(1, keys // 10))}" for name in ("sku", "new_sku")}
    row = {**identifiers, **products, "line": random.randrange(1, 5), **values(random)}
    return connection.execute(statement, row).rowcount != 0
