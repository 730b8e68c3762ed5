"""The formats of values: from bytes to columns, and from columns to bytes."""
