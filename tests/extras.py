"""Tests that need optional dependencies."""

from typing import Any

import pytest

from nmt.export.packages import is_installed

_CTRANSLATE2 = "ctranslate2 is not installed: pip install 'nmt[fast]'"

needs_ctranslate2 = pytest.mark.skipif(not is_installed("ctranslate2"), reason=_CTRANSLATE2)
needs_transformers = pytest.mark.skipif(
    not is_installed("transformers"), reason="transformers is not installed: pip install 'nmt[huggingface]'"
)
needs_rouge = pytest.mark.skipif(
    not is_installed("rouge_score"), reason="rouge_score is not installed: pip install 'nmt[summarize]'"
)


def import_ctranslate2() -> Any:
    """Return the package, or skip the test or module."""
    return pytest.importorskip("ctranslate2", reason=_CTRANSLATE2)
