"""Commands, examples, links and the code map of README and guide."""

import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.export.packages import is_installed
from nmt.recipe import parse_recipe
from nmt.recipe.reference import option_reference
from tests.calling import Nmt

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = ROOT / "nmt" / "guide"
# Ordered such that each command finds the files of earlier ones.
PAGES = (
    *("install", "training", "translating", "evaluating", "alignments", "export", "benchmarks", "architecture"),
    *("tutorial", "python"),
)
TEXT = README + "".join((GUIDE / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def nmt_commands() -> list[list[str]]:
    commands = []
    for line in "\n".join(blocks("bash")).splitlines():
        words = shlex.split(line, comments=True)
        if "nmt" in words:
            commands.append(words[words.index("nmt") + 1 :])
    return commands


def tutorial_test_set() -> str:
    """The table that the tutorial adds to the recipe of `nmt new`."""
    (table,) = (block for block in blocks("toml") if block.startswith("[data.test]"))
    return table


def test_the_tools_of_the_quick_start_are_executable() -> None:
    for line in blocks("bash")[0].splitlines():
        assert (ROOT / line.split()[0]).stat().st_mode & 0o111


LANGUAGE_MODEL = """
name = "lm"
src_lang = "zxx"
tgt_lang = "de"
[data]
train = [{ kind = "monolingual", path = "corpus/train.de" }]
valid = [{ kind = "monolingual", path = "corpus/valid.de" }]
"""

# Runs several commands in one interpreter, because startup takes longer than each of them; `append PATH TEXT` is not a
# command of nmt. `nmt run` skips its curves: drawing takes longer than its training; `nmt plot curves` draws them.
RUN_ALL = """
import json, sys
from pathlib import Path
from nmt import cli
from nmt.pipeline import reporting
reporting._draw_curves = lambda recipe: (None, ())
for words in json.loads(sys.argv[1]):
    if words[0] == "append":
        with Path(words[1]).open("a") as file:
            file.write(words[2])
        continue
    sys.argv = ["nmt", *words]
    try:
        cli.main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{words}: exit status {ended.code}")
"""


def shrink(words: list[str]) -> list[str]:
    """Shrink the model, use fewer updates and less time, and make `replay` repeat one of these updates."""
    if words[0] == "replay":
        return ["3" if word == "31337" else word for word in words]
    if words[0] not in ("run", "train", "plan", "lr-range"):
        return words
    small = ["tokenizer.vocab_size=310", "data.workers=1", "model.d_model=16", "model.d_ff=16", "model.num_heads=2"]
    small += ["model.num_encoder_layers=1", "model.num_decoder_layers=1", "train.threads=1"]
    small += ["train.batch_tokens=400", "train.micro_batch_tokens=400", "train.save_every=1", "train.device=cpu"]
    average = [] if "train.average=ema" in words else ["train.average_count=2"]
    overrides = [*small, *words[2:], "train.max_steps=4", *average]
    shorter = {"plan": ["--seconds", "1"], "lr-range": ["--updates", "20"]}.get(words[0], [])
    return [*words[:2], *{one.partition("=")[0]: one for one in overrides}.values(), *shorter]


@pytest.mark.slow
def test_the_worked_example_runs(tmp_path: Path) -> None:
    """Run its recipe and commands on text with the expected names, with a small model and few updates."""
    (tmp_path / "mine.toml").write_text(blocks("toml")[0])
    (tmp_path / "lm.toml").write_text(LANGUAGE_MODEL)
    for folder in ("corpus", "new"):
        (tmp_path / folder).mkdir()
        for name, lines in {"train": 80, "valid": 6, "news": 4}.items():
            for side in ("en", "de"):
                text = "".join(f"{side} word{i} of {name} {folder} number {i * 7 % 13}\n" for i in range(lines))
                (tmp_path / folder / f"{name}.{side}").write_text(text)
    (tmp_path / "input.txt").write_text("word1 of train\n")
    (tmp_path / "pairs.tsv").write_text("1\tword1 of train\n")
    (tmp_path / "page.html").write_text("<p>word1 of <b>train</b></p>\n")
    (tmp_path / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nword1 of train\n")
    (tmp_path / "terms.tsv").write_text("word1\tword1\n")
    (tmp_path / "gold.txt").write_text("0-0 1?1\n")
    for name in ("manual.txt", "manual-2.txt"):
        (tmp_path / name).write_text("word1 of train\n")
    (tmp_path / "pages.jsonl").write_text('{"id": 1, "body": {"text": "word1 of train"}}\n')
    commands = [shrink(words) for words in nmt_commands() if "recipes" not in " ".join(words)]
    expected = {"config", "run", "train", "average", "translate", "score", "evaluate", "compare", "plot", "align"}
    expected |= {"heads", "rerank", "shortlist", "leaks", "info", "new", "plan", "lr-range", "replay"}
    if is_installed("ctranslate2") and is_installed("transformers"):
        expected |= {"export", "import"}
    else:
        commands = [words for words in commands if not {"export", "import", "ctranslate2"} & set(words)]
    assert {words[0] for words in commands} == expected
    written = next(number for number, words in enumerate(commands, start=1) if "first.toml" in words)
    commands.insert(written, ["append", "first.toml", tutorial_test_set()])
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        cwd=tmp_path,
        input=b"Good morning!\n",
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "output.txt").read_text().count("\n") == 1
    assert (tmp_path / "translated.tsv").read_text().startswith("1\tword1 of train\t")
    assert gzip.decompress((tmp_path / "pages.de.jsonl.gz").read_bytes()).startswith(b'{"id": 1, "body": ')
    has_engine = is_installed("ctranslate2")
    python = "".join(block for block in blocks("python") if has_engine or "CTranslate2" not in block)
    shown = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    printed = shown.stdout.splitlines()
    assert len(eval(printed[0], {})) == 2  # noqa: S307 - the printed list of two translations
    assert len(printed) == python.count("print(") + 1  # one call, in a loop, prints two scores


def test_the_example_of_mixed_corpora_is_valid() -> None:
    whole, mixed, both, *_ = blocks("toml")
    head, _, tail = whole.partition("train = [")
    recipe = parse_recipe(head + tail.partition("\n")[2].replace("[data.test]", mixed + "\n[data.test]"))
    assert [(corpus.weight, corpus.tag) for corpus in recipe.data.train] == [(4.0, None), (1.0, None)]
    data = parse_recipe(both).data
    assert [corpus.tag for corpus in (*data.train, *data.valid, *data.test.values())] == ["<2de>", "<2fr>"] * 3


def test_the_recipe_of_the_example_trains_the_papers_base_model() -> None:
    recipe = parse_recipe(blocks("toml")[0])
    assert (recipe.model.d_model, recipe.model.num_encoder_layers, recipe.train.schedule) == (512, 6, "noam")


def test_the_code_map_is_correct() -> None:
    rows = re.findall(r"\| `(?:\w+\.)?(\w+)` in `(nmt/[\w/]+\.py)` \|", TEXT)
    assert len(rows) > 20
    for name, path in rows:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"\b(?:def|class) {name}\b", source), f"{path} does not define {name}"


def test_the_readme_is_short_and_links_are_valid() -> None:
    assert README.count("\n") <= 150
    for page in (ROOT / "README.md", *GUIDE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            linked = (page.parent / target).resolve() if target else page
            assert linked.is_file(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not anchor or anchor in anchors, f"{page.name}: #{anchor}"


@pytest.mark.slow
def test_the_options_page_is_up_to_date() -> None:
    found = (GUIDE / "options.md").read_text(encoding="utf-8")
    assert found == option_reference(), "run: python -m nmt guide options > nmt/guide/options.md"


def test_the_guide_is_printed_page_by_page(nmt: Nmt) -> None:
    listed = nmt("guide")[1].splitlines()
    assert {line.split()[0] for line in listed} == {page.stem for page in GUIDE.glob("*.md")}
    assert nmt("guide", "training")[1] == (GUIDE / "training.md").read_text(encoding="utf-8")
    status, _, errors = nmt("guide", "Trainin")
    assert status == 2 and "no such page; did you mean training?" in errors
    status, _, errors = nmt("guide", "xyz")
    assert status == 2 and "no such page; it must be one of alignments, " in errors


def test_messages_of_the_questions_page_exist() -> None:
    page = (GUIDE / "questions.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "nmt").rglob("*.py"))
    joined = re.sub(r'"\s+f?"', "", source)  # strings that continue on the next line
    assert len(messages) > 20
    assert [message for message in messages if message not in joined] == []
