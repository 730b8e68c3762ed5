"""Topics into Delta tables, each record in exactly one place, and the proof."""
