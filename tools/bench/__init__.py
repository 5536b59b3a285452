"""Comparison of nmt with other systems on one machine; see `tools/bench/run --help`."""
