"""The guide: Markdown pages that travel with the package; `nmt guide` prints them."""
