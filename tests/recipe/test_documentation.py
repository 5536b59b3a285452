"""Documentation of sections and options."""

import pydoc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt import recipe as recipe_package
from nmt.recipe import (
    DecodeRecipe,
    ModelRecipe,
    Recipe,
    Section,
    describe_recipe,
    dump_recipe,
    load_any_recipe,
    load_classification_recipe,
    parse_recipe,
)
from nmt.recipe.corpora import CORPUS_KINDS, CorpusOptions
from nmt.recipe.documentation import option_documentation
from nmt.recipe.reference import option_reference
from tests.recipe.small_recipe import SMALL

SECTIONS = [item for item in vars(recipe_package).values() if isinstance(item, type) and issubclass(item, Section)]


def test_all_sections_are_exported() -> None:
    types_of_options = [field.annotation for field in Recipe.model_fields.values()]
    sections_of_recipe = [one for one in types_of_options if isinstance(one, type) and issubclass(one, Section)]
    assert {Section, Recipe, *sections_of_recipe, *CORPUS_KINDS.values()} <= set(SECTIONS)
    assert len(SECTIONS) == 21  # including two for classifiers


@pytest.mark.parametrize("section", [section for section in SECTIONS if section is not Section])
def test_every_section_and_option_is_documented(section: type[Section]) -> None:
    assert section.__doc__
    assert section.__doc__ != Section.__doc__
    # `kind` and the sections are documented by their classes.
    undocumented = [name for name, text in option_documentation(section).items() if not text]
    assert set(undocumented) <= {"kind", "data", "tokenizer", "model", "train", "decode", "evaluate"}


def option_names(tree: dict[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and name != "test":
            yield from option_names(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def documented_names(text: str) -> Iterator[str]:
    """Yield the options below a comment, with their section."""
    section = above = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif above.startswith("# "):
            yield section + line.removeprefix("# ").split(" =")[0]
        above = line


def test_describe_recipe_documents_every_option() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    assert set(option_names(tomllib.loads(dump_recipe(parse_recipe(SMALL))))) <= set(documented_names(text))
    for unset in ("run_dir", "max_minutes", "max_epochs"):
        assert f"# {unset} =" in text.splitlines()


def test_describe_recipe_of_a_classifier_has_the_options_that_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    path.write_text(
        'name = "topics"\n[data]\nlabels = ["sport", "news"]\ntrain = [{ kind = "tsv", path = "t" }]\n'
        "[train]\nmicro_batch_tokens = 300\n"
    )
    recipe = load_any_recipe(path, ["seed=3"])
    text = describe_recipe(recipe)
    assert 'labels = ["sport", "news"]' in text
    assert "num_decoder_layers" not in text and "[decode]" not in text
    path.write_text(text)
    assert load_any_recipe(path) == recipe == load_classification_recipe(path)


def test_describe_recipe_lists_choices() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    assert "One of: relu, gelu, swish, swiglu." in text
    assert (
        "Any of: bleu, chrf, chrf++, ter, bleu-tokenized, bleu-tokenized-lc, bleu-compound-split, bracket-f1, "
        "rouge-1, rouge-2, rouge-l, rouge-lsum." in text
    )
    reference = option_reference()
    assert "One of: `relu`, `gelu`, `swish`, `swiglu`." in reference
    assert "Any of: `bleu`, `chrf`, `chrf++`, `ter`, `bleu-tokenized`" in reference


def test_describe_recipe_documents_every_kind_of_corpus() -> None:
    text = describe_recipe(parse_recipe(SMALL))
    for kind, section in CORPUS_KINDS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f'#   kind = "{kind}":')]
        own = section.model_fields.keys() - {"kind", *CorpusOptions.model_fields}
        assert all(re.search(rf"[ ,]{name}\b", line) for name in own), line
    assert '#   kind = "tsv": path*, src_column = 0, tgt_column = 1, label_column, document_column\n' in text
    assert "#   Corpora of every kind: tag, src_lang, tgt_lang, weight = 1.0, alignment\n" in text


@pytest.mark.slow
def test_validators_are_built_lazily() -> None:
    """Building the validators of all sections takes longer than translating a line."""
    shown = "print([one.__pydantic_complete__ for one in (r.DecodeRecipe, r.Recipe)])"
    program = f"import nmt.recipe as r; r.DecodeRecipe(); {shown}"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[True, False]\n"


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_python_help_documents_every_option(section: type[Section]) -> None:
    lines = pydoc.plain(pydoc.render_doc(section)).splitlines()
    text = " ".join(" ".join(line.strip(" |") for line in lines).split())
    assert " ".join(section.summary.split()) in text
    for name, documentation in option_documentation(section).items():
        meaning = " ".join(documentation.split())
        assert re.search(rf"(?<= ){name}( = .*?)? {re.escape(meaning)}", text), name


def test_python_help_has_defaults_and_describe_recipe_does_not_repeat_options() -> None:
    assert "beam_size = 4\n    Hypotheses kept at each step; 1 is greedy search." in (DecodeRecipe.__doc__ or "")
    assert describe_recipe(parse_recipe(SMALL)).count("Hypotheses kept at each step") == 1


def test_one_head_is_described_in_the_singular() -> None:
    assert "1 head, " in ModelRecipe(num_heads=1).description
    assert "8 heads, " in ModelRecipe().description
