"""What the bytes of a value mean: from bytes to columns, and from columns to bytes."""
