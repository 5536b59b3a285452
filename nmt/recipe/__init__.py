"""The recipe: all options of a run in one TOML file.

Each section is a frozen pydantic model. The docstring of a field is the documentation of the option, which
`nmt config RECIPE` prints. Values that the launcher determines, such as the world size, are not options.
"""

from nmt.recipe.classification import ClassificationRecipe, LabeledDataRecipe, Noise
from nmt.recipe.context import NO_CONTEXT, SEPARATOR, Context, ContextSides, ContextSize
from nmt.recipe.corpora import (
    NO_LANGUAGE,
    Corpus,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    MonolingualCorpus,
    ParquetCorpus,
    SacrebleuCorpus,
    Section,
    SgmCorpus,
    TextCorpus,
    TmxCorpus,
    ToyCorpus,
    TreesCorpus,
    TsvCorpus,
    UnicodeForm,
    has_label,
    named_files,
)
from nmt.recipe.decoding import (
    DecodeRecipe,
    GlossaryMode,
    SearchPrecision,
    ineffective_option,
    require_length_penalty_effect,
)
from nmt.recipe.effects import has_tree_vocabulary
from nmt.recipe.evaluation import BleuTokenizer, EvaluateRecipe, Metric
from nmt.recipe.former_options import upgrade_options
from nmt.recipe.model import ModelRecipe
from nmt.recipe.reference import describe_recipe
from nmt.recipe.sections import DataRecipe, Recipe, TokenizerRecipe, TrainRecipe
from nmt.recipe.term_markers import TERM_MARKERS
from nmt.recipe.toml import (
    dump_choices,
    dump_recipe,
    is_dumped,
    load_any_recipe,
    load_classification_recipe,
    load_recipe,
    load_saved_recipe,
    override_decode,
    override_own_decode,
    overrides_by_name,
    parse_recipe,
    parse_saved_recipe,
    revalidate,
)
from nmt.recipe.validation import explain, requirement

# The names that users import; without this list, type checkers reject them.
__all__ = ["DecodeRecipe", "Recipe", "load_recipe"]
