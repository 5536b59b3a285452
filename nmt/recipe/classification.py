"""The recipe of a text classifier: sections of a translation recipe, with labels in place of translations."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from nmt.recipe.corpora import (
    Corpus,
    CorpusOptions,
    FilledPath,
    MonolingualCorpus,
    Section,
    Seed,
    UnicodeForm,
    has_label,
)
from nmt.recipe.effects import require_training_effect
from nmt.recipe.model import DROPOUT_OPTIONS, ModelRecipe
from nmt.recipe.sections import NAME_PATTERN, TokenizerRecipe, TrainRecipe

Noise = Literal["shuffled", "truncated", "wrong-language", "misaligned"]

# The options of shared sections that a classifier uses; others are errors.
USED_OPTIONS = {
    "tokenizer": {"algorithm", "vocab_size", "character_coverage", "lowercase", "user_symbols"},
    "model": {
        *("d_model", "d_ff", "num_heads", "d_head", "num_encoder_heads", "num_encoder_layers", "max_positions"),
        *(*DROPOUT_OPTIONS, "activation", "norm_order", "norm", "positions", "max_distance"),
    },
    "train": {
        *("max_steps", "max_minutes", "max_epochs", "batch_tokens", "micro_batch_tokens", "precision", "device"),
        *("optimizer", "adam_betas", "adam_epsilon", "weight_decay", "clip_norm", "threads", "schedule"),
        *("learning_rate", "warmup_steps", "schedule_start", "final_rate_ratio", "log_every", "validate_every"),
        *("save_every", "patience"),
    },
}


class LabeledDataRecipe(Section):
    """Labeled texts, or pairs of texts. A corpus with `label_column` or `label_field` has pairs (its source and target)
    with this label; in any other corpus, the source is the text and the target its label."""

    root: Path = Path()
    """Base directory of relative corpus paths; by default the current directory."""
    train: tuple[Corpus, ...] = Field(min_length=1)
    """Training corpora."""
    valid: tuple[Corpus, ...] = ()
    """Validation corpora, which select the best checkpoint. By default, a random tenth of the training examples,
    which is excluded from training."""
    test: dict[str, Corpus] = Field(default_factory=dict)
    """Test sets by name, which are classified at the end."""
    labels: tuple[str, ...] = ()
    """Names of the classes. If the corpora contain class indices from 0, list the names in that order. By default the
    labels of the training text, sorted."""
    noise: tuple[Noise, ...] = ()
    """Train a filter for parallel text: the corpora have pairs without labels. Each pair gets the label `translation`,
    and a copy with one of these kinds of noise gets that kind as its label."""
    unicode_form: UnicodeForm = "NFC"
    """Unicode normalization of all text, including at inference."""
    invalid_utf8: Literal["error", "replace"] = "error"
    """For bytes that are not UTF-8: stop with an error that names the file and line, or insert U+FFFD."""
    max_tokens: PositiveInt = 256
    """Maximum length of a text, or of each text of a pair, in subword tokens; longer texts are truncated."""

    @model_validator(mode="after")
    def _corpora_agree(self) -> LabeledDataRecipe:
        corpora = [*self.train, *self.valid, *self.test.values()]
        for corpus in corpora:
            if isinstance(corpus, MonolingualCorpus):
                raise ValueError(
                    "a corpus has kind 'monolingual', which has no labels; a classifier needs texts with labels, or "
                    "pairs; use another kind"
                )
            if len(corpus.references) > 1:
                raise ValueError(
                    f"tgt of a corpus is a list of {len(corpus.references)} files; a classifier reads one; give one "
                    "file"
                )
        labeled = {has_label(corpus) for corpus in corpora}
        if self.noise and not self.valid:
            raise ValueError(
                "data.valid is missing; data.noise needs it, because held-out pairs would have noisy copies in training"
            )
        if self.noise and True in labeled:
            raise ValueError("data.noise supplies the labels; remove label_column and label_field from the corpora")
        if len(labeled) > 1:
            raise ValueError(
                "some corpora have label_column or label_field and others do not; all must have pairs of texts, or "
                "all single texts; correct the corpora"
            )
        if self.noise and self.labels:
            raise ValueError("data.labels has no effect with data.noise, which names the classes; remove data.labels")
        if len(self.labels) == 1:
            raise ValueError("data.labels has one name; it must have all classes, at least two; add the others")
        if repeated := [label for label in self.labels if self.labels.count(label) > 1]:
            raise ValueError(f"data.labels has {repeated[0]!r} twice; names must be distinct; remove one")
        for option in (*CorpusOptions.model_fields, "document_column", "document_field"):
            default = 1.0 if option == "weight" else None
            if any(getattr(corpus, option, default) != default for corpus in corpora):
                raise ValueError(f"{option} of a corpus has no effect on a classifier; remove {option}")
        return self

    @property
    def has_pairs(self) -> bool:
        """Whether an example is a pair of texts."""
        return bool(self.noise) or has_label(self.train[0])


class ClassificationRecipe(Section):
    """A classifier, from labeled text to test results."""

    name: str = Field(pattern=NAME_PATTERN)
    """Name of the run."""
    seed: Seed = 1
    """Seed of data order, noise, initialization and dropout."""
    run_dir: FilledPath | None = None
    """Run directory; by default `runs/<name>`."""
    data: LabeledDataRecipe
    tokenizer: TokenizerRecipe = Field(default_factory=TokenizerRecipe)
    model: ModelRecipe = Field(default_factory=ModelRecipe)
    train: TrainRecipe = Field(default_factory=TrainRecipe)

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> ClassificationRecipe:
        for name, used in USED_OPTIONS.items():
            section: Section = getattr(self, name)
            if wrong := sorted(set(section.changed_options()) - used):
                raise ValueError(f"{name}.{wrong[0]} has no effect on a classifier; remove {name}.{wrong[0]}")
        require_training_effect(self)
        if self.train.precision == "fp16":
            raise ValueError("train.precision is 'fp16', which a classifier does not support; use 'bf16' or 'fp32'")
        if self.train.schedule == "plateau":
            raise ValueError("train.schedule is 'plateau', which a classifier does not support; use 'inverse-sqrt'")
        if self.train.micro_batch_tokens == "auto":
            raise ValueError("train.micro_batch_tokens is 'auto', which a classifier does not support; set a number")
        longest = self.longest
        if longest > self.model.max_positions:
            raise ValueError(
                f"data.max_tokens is {self.data.max_tokens}, which makes examples of up to {longest} tokens; "
                f"set model.max_positions to {longest} or more"
            )
        if longest > self.train.micro_batch_tokens:
            raise ValueError(
                f"train.micro_batch_tokens is {self.train.micro_batch_tokens}; the longest example must fit; "
                f"set train.micro_batch_tokens to {longest} or more, or lower data.max_tokens"
            )
        return self

    @property
    def longest(self) -> int:
        """Maximum length of an example in tokens, with the special tokens."""
        return 2 * self.data.max_tokens + 2 if self.data.has_pairs else self.data.max_tokens + 1

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_dir if self.run_dir is not None else Path("runs") / self.name
