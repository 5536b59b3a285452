"""Optional packages."""

import json
import subprocess
import sys

import pytest

from nmt.errors import UserError
from nmt.export.packages import load_package
from tests.extras import needs_ctranslate2

_DEFERRED = """
import json, sys
from nmt.export.packages import load_package

ctranslate2 = load_package("ctranslate2")
after_import = sorted({"asyncio", "ssl"} & set(sys.modules))
used = ctranslate2.extensions.asyncio.Queue  # as CTranslate2 uses it

import asyncio.events

same = used is asyncio.Queue and ctranslate2.extensions.asyncio.sleep is asyncio.sleep
print(json.dumps([after_import, same, asyncio.run(asyncio.sleep(0, "result"))]))
"""


@needs_ctranslate2
def test_asyncio_is_imported_when_ctranslate2_uses_it() -> None:
    run = subprocess.run([sys.executable, "-c", _DEFERRED], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [[], True, "result"]


def test_a_package_that_is_not_installed_raises_an_error_that_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)  # an import raises ImportError
    with pytest.raises(UserError, match=r"py3langid cannot be imported .*'nmt\[serve\]'"):
        load_package("py3langid")
