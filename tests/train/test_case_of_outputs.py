"""`nmt run` reports lowercase translations that are scored against references with capitals."""

from pathlib import Path

import pytest

from tests.calling import Nmt
from tests.recipes import SMALL_MODEL
from tests.train.small_run import RECIPE

pytestmark = pytest.mark.usefixtures("no_curves")

OPTIONS = [
    "train.validate_every=80",
    "train.save_every=80",
    "train.max_steps=80",
    "train.schedule=constant",
    "train.learning_rate=0.01",
    "train.warmup_steps=0",
]


@pytest.mark.slow
def test_lowercase_translations_for_a_cased_reference_are_reported(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.de").write_text("die katze sieht mäuse\n" * 99)
    (tmp_path / "news.de").write_text("die Katze sieht Mäuse\n" * 99)
    for name in ("train", "news"):
        (tmp_path / f"{name}.en").write_text("".join(f"the cat sees {n} mice\n" for n in range(99)))
    (tmp_path / "lower.toml").write_text(RECIPE.replace("FOLDER", str(tmp_path)) + SMALL_MODEL)
    hint = "hint: the translations of data.test.news are lowercased and the reference is not, which lowers "
    for metrics, cased in ((["bleu", "chrf", "bleu-tokenized-lc"], "bleu, chrf"), (["bleu-tokenized-lc"], "")):
        options = [*OPTIONS, f"run_dir={tmp_path / 'run'}", f"evaluate.metrics={metrics}"]
        status, _, err = nmt("run", tmp_path / "lower.toml", *options)
        assert status == 0, err
        assert (hint in err) == bool(cased)
        assert not cased or f"{hint}{cased}; " in err
