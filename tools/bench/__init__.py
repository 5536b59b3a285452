"""nmt against other systems, side by side on one machine; `tools/bench/run --help` says how."""
