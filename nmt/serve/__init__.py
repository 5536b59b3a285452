"""The translation server. Importing it raises UserError if a package of the `serve` extra is missing."""

from nmt.export.packages import load_package

load_package("fastapi")
load_package("uvicorn")
