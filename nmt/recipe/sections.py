"""The recipe and its sections of data, tokenizer and training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator, model_validator

from nmt.recipe.consistency import require_fitting_sections, require_markup_support
from nmt.recipe.context import SEPARATOR, Context, ContextSides, ContextSize
from nmt.recipe.corpora import (
    LANGUAGE_PATTERN,
    NO_LANGUAGE,
    Corpus,
    FilledPath,
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    Section,
    Seed,
    SgmCorpus,
    TestSets,
    TextCorpus,
    UnicodeForm,
)
from nmt.recipe.decoding import DecodeRecipe, FinalDecodeRecipe
from nmt.recipe.effects import require_effect
from nmt.recipe.evaluation import EvaluateRecipe
from nmt.recipe.model import ModelRecipe

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Threads = Annotated[int, Field(ge=0, le=1_024)]  # the system aborts a process that starts too many
# Validation context of saved recipes: earlier versions accepted more options without effect.
SAVED = {"is_saved": True}


class DataRecipe(Section):
    """Corpora and the cleaning of training text."""

    root: Path = Path()
    """Base directory of relative corpus paths; by default the current directory."""
    train: tuple[Corpus, ...] = Field(min_length=1)
    """Training corpora."""
    valid: tuple[Corpus, ...] = Field(min_length=1)
    """Validation set, which selects the best checkpoint and is not filtered."""
    test: TestSets = Field(default_factory=dict)
    """Test sets by name. `nmt run` translates and scores them, and searches the training text for their sentences."""
    unicode_form: UnicodeForm = "NFC"
    """Unicode normalization of all text, including at inference."""
    invalid_utf8: Literal["error", "replace"] = "error"
    """For bytes that are not UTF-8: stop with an error that names the file and line, or insert U+FFFD."""
    max_tokens: PositiveInt = 256
    """Maximum length of a sentence in subword tokens. Longer training pairs are dropped (see `long_sources`), and in
    translation, longer lines are split (see `decode.long_lines`)."""
    long_sources: Literal["drop", "truncate"] = "drop"
    """Pairs whose source is longer than `max_tokens`: drop them, or truncate the source, for summarization. Set both
    this and `decode.long_lines` to `truncate`, or neither."""
    max_length_ratio: PositiveFloat = 9.0
    """Drop pairs with a higher ratio between the numbers of words, if a side has over 10 words; without spaces, two
    characters count as a word."""
    drop_duplicates: bool = True
    """Drop duplicate pairs, also across corpora; the first is kept. Case-sensitive, like `drop_identical`."""
    drop_identical: bool = True
    """Drop pairs whose sides are identical and have more than 3 words; untranslated text teaches copying."""
    drop_wrong_script: bool = True
    """Drop pairs in which most letters of a side are not in the script of its language; a Chinese, Japanese or Korean
    character counts as three letters. Languages with an unknown script or several scripts are not filtered (with a
    warning)."""
    temperature: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 1.0
    """Sampling temperature for several corpora: the fraction of a corpus of n pairs in an epoch is proportional to
    weight * n^(1/temperature). Higher values sample small corpora more often. At 1, with all weights 1, an epoch has
    each pair once."""
    reverse_target: bool = False
    """Train a right-to-left model: target tokens are in reverse order, but output text is not. For `nmt rerank`."""
    context: ContextSize = 0
    """Train a document-level model: up to N previous sentences of the document precede each source sentence, each
    followed by `<sep>`. An empty line on both sides ends a document. The oldest sentences are dropped if `max_tokens`
    is exceeded."""
    context_sides: ContextSides = "source"
    """`both` also puts the previous target sentences before the target; `nmt translate` then uses its own previous
    translations."""
    workers: Threads = 0
    """Processes that clean and encode text; 0 means one per CPU core, or a single one if the corpora are known to
    have fewer than 150,000 pairs."""

    @model_validator(mode="after")
    def _corpus_options_fit_the_split(self) -> DataRecipe:
        for name, corpus in self.corpora("train", "valid").items():
            if isinstance(corpus, TextCorpus | SgmCorpus) and isinstance(corpus.tgt, tuple):
                raise ValueError(
                    f"{name}.tgt is a list of {len(corpus.tgt)}; only test sets have several references; give one file"
                )
            for option in ("label_column", "label_field"):
                if getattr(corpus, option, None) is not None:
                    raise ValueError(
                        f"{name}.{option} has no effect; only test sets have labels; remove {name}.{option}"
                    )
        for name, corpus in self.corpora("valid", "test").items():
            for option, default in (("weight", 1.0), ("alignment", None)):
                if getattr(corpus, option) != default:
                    raise ValueError(
                        f"{name}.{option} has no effect; only training corpora use it; remove {name}.{option}"
                    )
        return self

    def corpora(self, *splits: Literal["train", "valid", "test"]) -> dict[str, Corpus]:
        """Return the corpora of some splits by name, such as `data.train.0` and `data.test.news`."""
        named = {"train": enumerate(self.train), "valid": enumerate(self.valid), "test": self.test.items()}
        return {f"data.{split}.{name}": corpus for split in splits for name, corpus in named[split]}

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the training corpora, each once."""
        return tuple(dict.fromkeys(corpus.tag for corpus in self.train if corpus.tag is not None))

    @property
    def context_options(self) -> Context:
        """The options of the context."""
        return Context(self.context, self.context_sides)

    @model_validator(mode="after")
    def _context_fits(self) -> DataRecipe:
        if self.context_sides == "both" and self.reverse_target:
            raise ValueError(
                "data.reverse_target is true; previous translations (data.context_sides = 'both') need a "
                "left-to-right model; choose one of them"
            )
        for index, corpus in enumerate(self.train if self.context else ()):
            if corpus.tag == SEPARATOR:
                raise ValueError(
                    f"data.train.{index}.tag is {SEPARATOR!r}, which data.context uses; choose another tag"
                )
        return self


class TokenizerRecipe(Section):
    """The SentencePiece model."""

    algorithm: Literal["bpe", "unigram", "char", "byte"] = "bpe"
    """Byte-pair encoding (Sennrich et al. 2016; the paper), unigram language model (Kudo 2018), characters or bytes."""
    vocab_size: PositiveInt = 32_000
    """Vocabulary size, including special tokens and 256 byte tokens. With `char`, the maximum; rarer characters are
    encoded as bytes. With `byte` it is always 261 plus `user_symbols` and tags: spaces have their own token. A
    reused tokenizer keeps its own size, plus new `user_symbols` and tags."""
    joint: bool = True
    """One model for both languages (required for three-way tied embeddings), or one per language. If all training
    corpora are `trees`, a separate target model has one token per bracket."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Fraction of characters covered by the vocabulary; the others are encoded as bytes."""
    lowercase: bool = False
    """Lowercase all text, including at inference; `bleu` and `chrf` then ignore case. Letters are lowercased without
    context: also in Turkish, I becomes i, and a capital sigma never becomes final. A reused tokenizer keeps its
    setting."""
    user_symbols: tuple[str, ...] = ()
    """Strings that are always single tokens, unless a reused tokenizer already has them as ordinary tokens."""
    start_from: FilledPath | None = None
    """Reuse the tokenizer of this model or run, even if the run is only prepared, or the SentencePiece model of another
    program. Implied by `train.start_from`."""
    training_pairs: PositiveInt = 2_000_000
    """Maximum training pairs for the tokenizer, sampled from the corpora as in an epoch."""


class TrainRecipe(Section):
    """Training (paper, section 5)."""

    start_from: FilledPath | None = None
    """Model directory, checkpoint or run to fine-tune; its weights and tokenizer are reused."""
    start_optimizer: Literal["fresh", "kept"] = "fresh"
    """Optimizer state with `start_from`: reset it, or keep that of the checkpoint. The schedule always restarts."""
    freeze: tuple[str, ...] = ()
    """Parameters to freeze: `encoder`, `decoder`, `embeddings`, or patterns such as `encoder.layers.0.*`."""

    max_steps: PositiveInt = 100_000
    """Number of updates."""
    max_minutes: PositiveFloat | None = None
    """Stop after this many minutes of updates over all sessions, excluding startup, validation and saving. Takes effect
    at the next log, validation or checkpoint; does not change the schedule."""
    max_epochs: PositiveInt | None = None
    """Stop after this many epochs; does not change the schedule, which ends at `max_steps`."""
    batch_tokens: PositiveInt = 25_000
    """Maximum target tokens per update, over all processes and micro-batches. The limit on source tokens follows from
    the ratio of source to target tokens in the training text."""
    micro_batch_tokens: PositiveInt | Literal["auto"] = 4_096
    """Maximum source tokens and maximum target tokens per forward and backward pass, which must fit in memory. `auto`
    finds the largest at the start, and again if the number of processes, the kind of device (CPU or GPU) or an option
    that affects memory, such as `precision`, changes."""
    micro_batches: PositiveInt | Literal["auto"] = "auto"
    """Micro-batches per update, over all processes. `auto`: the smallest number that fits `micro_batch_tokens` and is
    the same for each process. If a number is too small, a multiple of it is used; 8 gives the same micro-batches on 1,
    2, 4 and 8 processes. Gradients do not depend on it, except for rounding; dropout masks do."""
    activation_checkpointing: bool = False
    """Recompute the activations inside the layers in the backward pass: less memory, about a third more computation."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam (the paper) or Adam with decoupled weight decay."""
    adam_betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the moment estimates."""
    adam_epsilon: PositiveFloat = 1e-9
    """Epsilon of Adam."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of matrices, not of biases and norms; needs `adamw`."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant", "plateau"] = "noam"
    """Learning rate schedule: `noam` (the paper), or warm-up to `learning_rate` and then the named decay. `plateau`
    multiplies the rate by `plateau_factor` after `plateau_patience` validations without a lower nll (without EMA)."""
    learning_rate: PositiveFloat = 1.0
    """Peak learning rate; for `noam`, a factor on the paper's schedule (peak: 1/sqrt(d_model * warmup_steps))."""
    warmup_steps: NonNegativeInt = 4_000
    """Updates of linear warm-up."""
    schedule_start: NonNegativeInt = 0
    """Restart the schedule, including warm-up, after this update (Loshchilov and Hutter 2017), to continue training a
    finished run. Before it, the schedule is that of a run with this number as `max_steps`."""
    final_rate_ratio: Probability = 0.0
    """Final learning rate of `cosine` and `linear`, at `max_steps`, as a fraction of the peak."""
    plateau_factor: Probability = 0.5
    """With `plateau`: factor of each reduction of the learning rate, above 0."""
    plateau_patience: PositiveInt = 3
    """With `plateau`: validations without a lower nll before each reduction. Early stopping (`patience`) should wait
    longer."""
    dropout_ramp_steps: NonNegativeInt = 0
    """Increase all dropout rates from 0 to their full values in four equal steps over this many updates; 0 disables
    this, as in the paper. With `compile`, each of the five levels is compiled."""
    label_smoothing: Probability = 0.1
    """Probability mass distributed evenly over the vocabulary, including the gold token."""
    rdrop: NonNegativeFloat = 0.0
    """Weight of the R-Drop loss (Liang et al. 2021, who use 5): divergence between two passes with different dropout
    masks. Doubles the computation."""
    guided_alignment: bool = False
    """Guided alignment (Chen et al. 2016; Garg et al. 2019): train one head of the cross-attention to align words, for
    better alignments in translation. It is the head of `decode.alignment_layer` and `alignment_heads`, by default head
    0 of the second-to-last layer. The links come from a statistical aligner, or from the file in `alignment` of a
    corpus."""
    guided_alignment_weight: PositiveFloat = 0.1
    """Weight of the loss of `guided_alignment`, the cross-entropy between the links of each target token and the
    attention; Marian's default is 0.1, Garg et al. use 0.05."""
    glossary_markup: Probability = 0.0
    """Fraction of the training pairs with marked terms, for `nmt translate --glossary`: one to three terms of one
    or two words, each followed by a base form of its translation between reserved tokens, which the model learns to
    inflect (Dinu et al. 2019, with a fraction of 0.1; Bergmanis and Pinnis 2021). 0 disables this."""
    subword_sampling: Probability = 0.0
    """Subword regularization: sample a new segmentation in each epoch. For bpe, the probability of dropping a merge
    (BPE-dropout, Provilkov et al. 2020, who use 0.1); for unigram, the sampling exponent (Kudo 2018, who uses 0.1 to
    0.5). 0 disables this."""
    subword_sampling_sides: Literal["both", "src", "tgt"] = "both"
    """Sides with sampled segmentations."""
    clip_norm: NonNegativeFloat = 0.0
    """Maximum gradient norm; 0 disables clipping (the paper)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute type of matmuls; `auto` is bf16 if the CPU or GPU supports it natively (compute capability 8.0 or
    higher), else fp32. fp16, with loss scaling, is for GPUs without bf16."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: Threads = 0
    """CPU threads per process; 0 distributes the cores evenly."""
    compile: bool = False
    """Use torch.compile: faster updates after about a minute of compilation. On a single GPU of compute capability 8.0
    or higher, in bf16 or fp16, compiles model and loss into one graph where possible (not with R-Drop, attention
    dropout, guided alignment, relative positions or `shapes` = "packed"); else one graph per layer type."""
    shapes: Literal["auto", "packed", "fixed"] = "auto"
    """Shape of micro-batches: `packed`, without padding (in bf16 on a CPU, padded to a multiple of 64 tokens), or
    `fixed`, padded to one size. `auto` is `fixed` if `compile` gives one graph."""
    log_every: PositiveInt = 50
    """Log metrics every N updates."""
    validate_every: PositiveInt = 1_000
    """Compute the validation loss every N updates."""
    validate_bleu_every: NonNegativeInt = 0
    """Compute validation BLEU every N updates, a multiple of `validate_every`; 0 disables it."""
    validate_bleu_sentences: PositiveInt = 500
    """Number of sentences for validation BLEU: the first ones, or evenly spaced ones if `data.valid` has tags."""
    save_every: PositiveInt = 1_000
    """Save a checkpoint every N updates."""
    keep_last: PositiveInt = 5
    """Keep the newest N checkpoints."""
    keep_best: NonNegativeInt = 1
    """Also keep the best N, saved even if `save_every` is not due. While new, they count toward `keep_last`."""
    best_metric: Literal["loss", "nll", "bleu"] = "loss"
    """Criterion for the best checkpoints: validation loss (with label smoothing), negative log-likelihood or BLEU."""
    patience: NonNegativeInt = 0
    """Early stopping: stop after N validations without improvement; 0 disables it."""
    ema_decay: Probability = 0.0
    """Decay of the exponential moving average (EMA) of the weights, commonly 0.999; 0 disables it. At update t it is at
    most (1 + t) / (10 + t), to discard the initial weights quickly."""
    average: Literal["last", "best", "ema"] = "last"
    """Final model of `nmt run`: average of the last or the best `average_count` checkpoints, or the EMA."""
    average_count: PositiveInt = 5
    """Number of checkpoints to average (paper, section 6.1: 5 for base, 20 for big)."""

    @model_validator(mode="after")
    def _choices_fit_together(self) -> TrainRecipe:
        if self.weight_decay and self.optimizer != "adamw":
            raise ValueError("train.weight_decay needs decoupled decay; set train.optimizer to 'adamw'")
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError(
                "train.warmup_steps is 0, but the noam schedule divides by it; it must be at least 1; "
                "set it to 4_000 as in the paper"
            )
        if self.schedule == "plateau" and not self.plateau_factor:
            raise ValueError("train.plateau_factor is 0; it must be more than 0; set it to 0.5")
        if self.guided_alignment and self.subword_sampling:
            raise ValueError(
                "train.guided_alignment needs fixed tokens, and train.subword_sampling changes them; set one of them "
                "to false or 0"
            )
        if self.schedule_start >= self.max_steps:
            raise ValueError(
                f"train.schedule_start is {self.schedule_start}; it must be less than train.max_steps "
                f"({self.max_steps}); lower it, or raise train.max_steps"
            )
        if self.validate_bleu_every % self.validate_every:
            raise ValueError(
                f"train.validate_bleu_every is {self.validate_bleu_every}; "
                f"it must be a multiple of train.validate_every ({self.validate_every}), or 0"
            )
        if self.best_metric == "bleu" and self.validate_bleu_every != self.validate_every:
            raise ValueError(
                "train.best_metric is 'bleu'; it needs BLEU at every validation; "
                f"set train.validate_bleu_every to {self.validate_every}"
            )
        kept = {"last": ("keep_last", self.keep_last), "best": ("keep_best", self.keep_best)}
        if self.average in kept and self.average_count > kept[self.average][1]:
            option, count = kept[self.average]
            raise ValueError(
                f"train.average_count is {self.average_count}; it must be at most train.{option} ({count}); "
                f"set train.{option} to {self.average_count} or more"
            )
        if self.average == "ema" and not self.ema_decay:
            raise ValueError("train.average is 'ema', which needs train.ema_decay; set train.ema_decay, e.g. to 0.999")
        return self


class Recipe(Section):
    """A run, from text to scores."""

    name: str = Field(pattern=NAME_PATTERN)
    """Name of the run."""
    src_lang: str = Field(pattern=LANGUAGE_PATTERN)
    """Source language, ISO 639 code; `zxx` (no linguistic content) for a language model."""
    tgt_lang: str = Field(pattern=LANGUAGE_PATTERN)
    """Target language, ISO 639 code."""
    seed: Seed = 1
    """Seed of data order, initialization and dropout."""
    run_dir: FilledPath | None = None
    """Run directory; by default `runs/<name>`."""
    data: DataRecipe
    tokenizer: TokenizerRecipe = Field(default_factory=TokenizerRecipe)
    model: ModelRecipe = Field(default_factory=ModelRecipe)
    train: TrainRecipe = Field(default_factory=TrainRecipe)
    decode: FinalDecodeRecipe = Field(default_factory=DecodeRecipe, validate_default=True)
    evaluate: EvaluateRecipe = Field(default_factory=EvaluateRecipe)

    @field_validator("decode")
    @classmethod
    def _follow_training(cls, decode: DecodeRecipe, info: ValidationInfo) -> DecodeRecipe:
        """Set two defaults: the head that guided alignment trains, and annotation if training marks terms."""
        train = info.data.get("train")
        changes: dict[str, object] = {}
        if train is not None and train.guided_alignment:
            if len(decode.alignment_heads) > 1:
                raise ValueError(
                    f"decode.alignment_heads names {len(decode.alignment_heads)} heads, but train.guided_alignment "
                    "trains one; name one head"
                )
            changes["alignment_heads"] = decode.alignment_heads or (0,)
        if train is not None and train.glossary_markup and "glossary_mode" not in decode.model_fields_set:
            changes["glossary_mode"] = "annotate"
        return DecodeRecipe.model_construct(decode.model_fields_set, **(dict(decode) | changes))

    @model_validator(mode="after")
    def _sections_fit_together(self, info: ValidationInfo) -> Recipe:
        require_markup_support(self)
        if info.context is not SAVED:
            require_effect(self)
        require_fitting_sections(self)
        return self

    @property
    def reuses_tokenizer(self) -> bool:
        """Whether the tokenizer is that of another model."""
        return self.tokenizer.start_from is not None or self.train.start_from is not None

    @property
    def is_language_model(self) -> bool:
        """Whether the model has no source."""
        return self.src_lang == NO_LANGUAGE

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_dir if self.run_dir is not None else Path("runs") / self.name

    @property
    def data_directory(self) -> Path:
        """The directory of the prepared corpus."""
        return self.directory / "data"
