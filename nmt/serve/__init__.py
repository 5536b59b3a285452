"""The translation server. Importing it raises UserError if fastapi or uvicorn (extra `serve`) is missing."""

from nmt.export.packages import load_package

load_package("fastapi")
load_package("uvicorn")
