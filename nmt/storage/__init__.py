"""Model directories on disk: what they hold, written whole and verified."""
