"""One module per system, with a function `train`, `decode`, `prepare` or `learn` for each task that it supports.

Each takes a workload and a clock, and runs until its process exits. At the end of a round (some updates, or one pass
over the sentences) it reports the number of target tokens (`prepare`: of both sides) to the clock, which blocks until
the next round may start. The modules `*_file` translate files for `bench.file_comparison`, and `one_call_server` is a
server for `bench.serving`.
"""
