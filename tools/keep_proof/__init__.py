"""Check that `--keep` keeps all markup and items; see `tools/keep-proof`."""
