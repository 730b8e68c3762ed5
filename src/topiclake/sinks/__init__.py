"""Where streams go beside Delta tables: a streaming DataFrame in, a StreamingQuery out."""
