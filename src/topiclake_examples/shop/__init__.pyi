from .load import INSERTS, KINDS, change_shop
from .tables import TABLES, add_customer_level, await_published, create_shop, shop_conninfo, shop_rows

__all__ = [
    "INSERTS",
    "KINDS",
    "TABLES",
    "add_customer_level",
    "await_published",
    "change_shop",
    "create_shop",
    "shop_conninfo",
    "shop_rows",
]
