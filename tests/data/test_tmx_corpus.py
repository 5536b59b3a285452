"""Translation memories as corpora."""

import gzip
from pathlib import Path

from nmt.data.corpus import ReadOptions, count_pairs, input_files, pair_location, read_pairs
from nmt.recipe import TmxCorpus


def test_tmx_corpus(tmp_path: Path) -> None:
    units = [[("en-US", "One"), ("de", "Eins"), ("fr", "Un")], [("en-US", "Two"), ("fr", "Deux"), ("fr-CA", "2")]]
    texts = ["".join(f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>' for lang, text in unit) for unit in units]
    body = "".join(f"<tu>{text}</tu>" for text in texts)
    path = tmp_path / "memory.tmx.gz"
    path.write_bytes(gzip.compress(f"<tmx version='1.4'><body>{body}</body></tmx>".encode()))
    corpus, options = TmxCorpus(path="memory.tmx.gz"), ReadOptions(tmp_path, "en", "de")
    assert list(read_pairs(corpus, options)) == [("One", "Eins")]
    french = corpus.model_copy(update={"tgt_lang": "fr"})
    assert list(read_pairs(french, options)) == [("One", "Un"), ("Two", "Deux")]
    canadian = french.model_copy(update={"tgt_locale": "fr_CA"})
    assert list(read_pairs(canadian, options)) == [("Two", "2")]
    assert input_files(corpus, tmp_path) == [path]
    assert count_pairs(corpus, tmp_path) is None
    assert pair_location(corpus, tmp_path, 2, "src") == f"{path}, unit 2 in these languages"
