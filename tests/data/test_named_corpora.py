"""Corpora with a name: datasets of Hugging Face, test sets of sacreBLEU, the toy corpus."""

import json
import sys
from pathlib import Path

import pytest
import sacrebleu

from nmt.data.corpus import count_pairs, input_files, read_pairs, require_files
from nmt.errors import UserError
from nmt.recipe import HuggingFaceCorpus, SacrebleuCorpus, ToyCorpus
from tests.data.corpus_files import SRC, TGT, Records, one_line_error, options, read, write, write_parquet


@pytest.mark.parametrize("dataset", ["./none", "../none", "/none", "~/none"])
def test_a_missing_local_dataset_is_not_looked_up_on_the_hub(dataset: str, tmp_path: Path) -> None:
    corpus = HuggingFaceCorpus(dataset=dataset, split="train")
    one_line_error(corpus, tmp_path, r"cannot read /.*none: No such file; (.*none is relative to data.root|correct)")


def test_hugging_face_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(name: str, config: str | None, **options: object) -> Records:
        asked.append((name, config, options))
        return Records([{"translation": {"en": "a", "de": "b"}}])

    monkeypatch.setattr("datasets.load.load_dataset", load_dataset)
    corpus = HuggingFaceCorpus(dataset="wmt/wmt14", config="de-en", revision="b199e406369ec1b7634206d3ded5ba45de2fe696")
    assert read(corpus, tmp_path) == [("a", "b")]
    assert asked == [("wmt/wmt14", "de-en", {"split": "train", "revision": corpus.revision, "streaming": True})]


def test_files_of_a_dataset_include_those_of_linked_folders(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    write_parquet(tmp_path / "disk" / "train.parquet", {"a": SRC, "b": TGT})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "set" / "itself").symlink_to(tmp_path / "set")
    files = input_files(HuggingFaceCorpus(dataset="set", src_field="a", tgt_field="b"), tmp_path)
    assert files == [tmp_path / "set" / "data" / "train.parquet"]


@pytest.mark.slow
def test_hugging_face_from_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "json").mkdir()
    (tmp_path / "parquet").mkdir()
    nested = [{"en": src, "de": tgt} for src, tgt in zip(SRC, TGT, strict=True)]
    write(tmp_path / "json" / "train.jsonl", [json.dumps({"translation": record}) for record in nested])
    write_parquet(tmp_path / "parquet" / "train.parquet", {"a": SRC, "b": TGT})
    assert read(HuggingFaceCorpus(dataset="json"), tmp_path) == list(zip(SRC, TGT, strict=True))
    parquet = HuggingFaceCorpus(dataset="parquet", src_field="b", tgt_field="a")
    assert read(parquet, tmp_path) == list(zip(TGT, SRC, strict=True))
    (tmp_path / "parquet" / ".cache").mkdir()
    write(tmp_path / "parquet" / ".cache" / "train.metadata", ["time of the download"])
    assert input_files(parquet, tmp_path) == [tmp_path / "parquet" / "train.parquet"]
    one_line_error(HuggingFaceCorpus(dataset="json", revision="main"), tmp_path, "remove revision")
    one_line_error(HuggingFaceCorpus(dataset="json", split="nope"), tmp_path, "Bad split: nope")
    one_line_error(HuggingFaceCorpus(dataset="parquet"), tmp_path, "no field 'translation.en'")
    write(tmp_path / "json" / "train.jsonl", [])
    one_line_error(HuggingFaceCorpus(dataset="json"), tmp_path, "its files are empty")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "separator"), [("train.csv", ","), ("train.tsv", "\t")])
def test_all_words_of_a_csv_dataset_are_text(
    name: str, separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    pairs = [("None", "007"), ("NA", "1.50"), ("", "12"), ("nan", "")]
    write(tmp_path / "set" / name, [separator.join(row) for row in (("a", "b"), *pairs)])
    assert read(HuggingFaceCorpus(dataset="set", src_field="a", tgt_field="b"), tmp_path) == pairs


def test_datasets_of_the_current_directory_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `data.root` and the Hub are searched, although `load_dataset` prefers the current directory."""
    (tmp_path / "here" / "json").mkdir(parents=True)
    (tmp_path / "here" / "json" / "train.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n')
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    corpus = HuggingFaceCorpus(dataset="json", split="train")
    one_line_error(corpus, tmp_path / "there", f"{tmp_path}/there/json does not exist, but {tmp_path}/here/json does")
    assert read(corpus, tmp_path / "here") == [("a", "b")]


def test_a_dataset_without_one_of_its_shards_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set" / "data").mkdir(parents=True)
    names = [f"train-0000{index}-of-00003.parquet" for index in range(3)]
    for name in (*names, "test-00000-of-00002.parquet"):
        write_parquet(tmp_path / "set" / "data" / name, {"a": SRC, "b": TGT})
    corpus = HuggingFaceCorpus(dataset="set", src_field="a", tgt_field="b")
    assert len(read(corpus, tmp_path)) == 3 * len(SRC)
    path = tmp_path / "set" / "data" / names[1]
    path.unlink()
    one_line_error(corpus, tmp_path, f"{path} is missing; the dataset must have all 3")
    with pytest.raises(UserError, match="is missing"):  # before any work
        require_files([corpus], tmp_path)
    (tmp_path / "set" / "data" / names[2]).unlink()
    one_line_error(corpus, tmp_path, "and 1 more of these files are missing")
    one_line_error(corpus, tmp_path, r"renumber the existing ones, from train-00000-of-00001\.parquet")
    path.with_name(names[0]).rename(path.with_name("train-00000-of-00001.parquet"))
    assert len(read(corpus, tmp_path)) == len(SRC)


def test_file_instead_of_a_dataset_is_rejected_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets.load", None)  # not even imported, which takes seconds
    write(tmp_path / "train.jsonl", [json.dumps({"translation": {"en": "a", "de": "b"}})])
    corpus = HuggingFaceCorpus(dataset="train.jsonl")
    one_line_error(corpus, tmp_path, "is a file; it must be a directory; name its directory, or use another kind")
    with pytest.raises(UserError, match="is a file"):
        require_files([corpus], tmp_path)


def test_hugging_face_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    one_line_error(
        HuggingFaceCorpus(dataset="wmt/wmt14", config="de-en"), tmp_path, "wmt/wmt14.*set `dataset` to its path"
    )


def test_sacrebleu_reads_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_set = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path))
    for field in test_set.fieldnames("en-de"):
        write(Path(test_set._get_txt_file_path("en-de", field)), TGT if field == "ref" else SRC)
    assert read(SacrebleuCorpus(test_set="wmt14/full"), tmp_path) == list(zip(SRC, TGT, strict=True))


def test_sacrebleu_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    test_set = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path))
    monkeypatch.setattr(test_set, "_rawdir", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", fail)
    one_line_error(SacrebleuCorpus(test_set="wmt14/full"), tmp_path, "cannot download wmt14/full .no network.")


def test_unknown_sacrebleu_test_set(tmp_path: Path) -> None:
    one_line_error(SacrebleuCorpus(test_set="wmt1814"), tmp_path, "unknown sacreBLEU test set 'wmt1814'")
    with pytest.raises(UserError, match=r"wmt14/full has no pair en-xx; it has .*en-de"):
        list(read_pairs(SacrebleuCorpus(test_set="wmt14/full"), options(tmp_path, "xx")))


def test_the_toy_corpus_is_deterministic_and_without_duplicates(tmp_path: Path) -> None:
    corpus = ToyCorpus(split="valid", pairs=30, seed=3)
    pairs = read(corpus, tmp_path)
    assert len(set(pairs)) == count_pairs(corpus, tmp_path) == 30
    assert pairs == read(corpus, tmp_path)
    assert "sampler.py" in {path.name for path in input_files(corpus, tmp_path)}
