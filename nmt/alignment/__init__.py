"""Which source word each target word was made from."""
