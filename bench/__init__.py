"""Benchmarks: the same records, both sides in one run, counts verified, results as ratios."""
