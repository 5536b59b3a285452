"""Files of a dataset that is split into shards, such as `train-00000-of-00003.parquet`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from nmt.errors import UserError

_SHARD = re.compile(r"(.*-)([0-9]{5})-of-([0-9]{5})(\b.*)")


def require_all_shards(paths: Iterable[Path]) -> None:
    """Raise UserError if a shard is missing, according to the total in the names of the others."""
    existing: dict[tuple[Path, str, int, str], set[int]] = defaultdict(set)
    for path in paths:
        if match := _SHARD.fullmatch(path.name):
            start, index, count, end = match.groups()
            existing[path.parent, start, int(count), end].add(int(index))
    for (folder, start, count, end), indices in existing.items():
        missing = [f"{start}{index:05}-of-{count:05}{end}" for index in range(count) if index not in indices]
        if missing:
            others = "is missing" if len(missing) == 1 else f"and {len(missing) - 1:,} more of these files are missing"
            raise UserError(
                f"{folder / missing[0]} {others}; the dataset must have all {count:,}; download it again, or renumber "
                f"the existing ones, from {start}00000-of-{len(indices):05}{end}"
            )
