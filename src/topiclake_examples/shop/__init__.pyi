from .load import INSERTS, KINDS, change_shop
from .tables import TABLES, create_shop, shop_rows

__all__ = ["INSERTS", "KINDS", "TABLES", "change_shop", "create_shop", "shop_rows"]
