"""Check that `--keep` keeps all markup and items; see `tools/keep-check`."""
