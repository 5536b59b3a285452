"""Duplicate detection by hashes on disk."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.text.duplicates import DuplicateFinder


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=5))
@pytest.mark.slow
def test_the_first_of_equal_hashes_is_kept(tmp_path_factory: pytest.TempPathFactory, chunks: list[list[int]]) -> None:
    directory = tmp_path_factory.mktemp("hashes")
    with DuplicateFinder(directory) as finder:
        for chunk in chunks:
            finder.add(np.array(chunk, dtype=np.uint64) << np.uint64(5))
        kept = finder.first_occurrences()
    values = [value for chunk in chunks for value in chunk]
    expected = [value not in values[:i] for i, value in enumerate(values)]
    assert kept.tolist() == expected
    assert list(directory.iterdir()) == []


def test_files_are_removed_on_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), DuplicateFinder(tmp_path) as finder:
        finder.add(np.arange(100, dtype=np.uint64))
        assert list(tmp_path.iterdir()) != []
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
