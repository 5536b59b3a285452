"""Test sets that sacreBLEU downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt.errors import UserError


def sacrebleu_files(name: str, lang_pair: str) -> tuple[Path, list[Path]]:
    """Return the source file and the reference files of a sacreBLEU test set; download them if they are not cached.

    lang_pair: such as `en-de`

    Raises UserError for an unknown name or pair, and if the download fails.
    """
    if name not in DATASETS:
        raise UserError(f"unknown sacreBLEU test set {name!r}; `sacrebleu --list` shows the names; correct the name")
    test_set: Any = DATASETS[name]
    if lang_pair not in test_set.langpairs:
        pairs = ", ".join(sorted(test_set.langpairs))
        raise UserError(f"sacreBLEU test set {name} has no pair {lang_pair}; it has {pairs}; choose one")
    try:
        src = Path(test_set.get_source_file(lang_pair))
        refs = [Path(file) for file in test_set.get_reference_files(lang_pair)]
    except (Exception, SystemExit) as error:  # network, archives, XML; sys.exit for a wrong checksum
        remedy = f"on a machine with network access, run `sacrebleu -t {name} -l {lang_pair} --echo src`"
        raise UserError(
            f"sacreBLEU cannot download {name} ({error}); {remedy} and copy its ~/.sacrebleu to {SACREBLEU_DIR}"
        ) from error
    return src, refs


def sacrebleu_documents(name: str, lang_pair: str) -> Path | None:
    """Return the file with the document of each line, None if the test set has none; raise like `sacrebleu_files`."""
    sacrebleu_files(name, lang_pair)  # downloads the test set
    files = DATASETS[name].get_files(lang_pair)
    return next((Path(file) for file in files if str(file).endswith(".docid")), None)
