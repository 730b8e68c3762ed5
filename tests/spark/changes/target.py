"""A table of changes for tests, which write batches directly."""

import json
from types import MappingProxyType

from tests.support.local_rows import local_rows
from topiclake.changes import tables
from topiclake.changes.batch import ChangeTarget
from topiclake.changes.rows import ChangeRows
from topiclake.changes.rules import ChangeRules
from topiclake.delta import table as delta


class Target:
    """A table of changes, and its quarantine."""

    def __init__(self, spark, folder, columns, **rules):
        self.spark, self.columns = spark, columns
        self.table, self.quarantine = f"{folder}/table", f"{folder}/quarantine"
        self.rules = ChangeRules(**rules)
        self.target = ChangeTarget(self.table, self.quarantine, self.rules)

    def ensure(self, properties=MappingProxyType({})):
        rows = local_rows(self.spark, [], self.columns)
        changes = ChangeRows.of(rows, self.rules)
        tables.ensure(self.spark, self.table, changes.table_schema(rows), changes, properties)
        return self

    def write(self, rows, batch_id, writer="w", columns=None):
        rows = local_rows(self.spark, rows, columns or self.columns)
        self.target.write(rows, writer=writer, batch_id=batch_id)

    def stored(self):
        return delta.read(self.spark, self.table)

    def current(self, *names):
        rows = self.view().select(*names)
        return {row[0]: row[1] if len(row) == 2 else tuple(row[1:]) for row in rows.collect()}

    def rejected(self):
        rows = delta.read(self.spark, self.quarantine).select("offset", "reason", "row_json").collect()
        return {(row["offset"], row["reason"]): json.loads(row["row_json"]) for row in rows}

    def commits(self):
        rows = delta.history(self.spark, self.table).where("batch IS NOT NULL").collect()
        return [json.loads(row["batch"]) for row in rows]

    def view(self):
        return tables.current_rows(self.stored())
