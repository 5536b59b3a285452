"""The translation server. Importing it raises UserError without fastapi or uvicorn, from the `serve` extra."""

from nmt.export.packages import load_package

load_package("fastapi")
load_package("uvicorn")
