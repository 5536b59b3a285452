"""The guide: Markdown pages that ship with the package; `nmt guide` prints them."""
