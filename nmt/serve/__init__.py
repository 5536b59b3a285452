"""The translation server: models behind HTTP. Importing it raises UserError where a package of its extra is missing."""

from nmt.export.packages import load_package

load_package("fastapi")
load_package("uvicorn")
