"""Search on a GPU: each step of the decoder is recorded once for every size, and then replayed as one launch.

A step is some hundred small kernels, and the host takes longer to start them than the GPU to compute them. A CUDA graph
starts all of them at once, but it reads and writes the same addresses each time, and no size in it can change. So the
tensors of a search lie in `Buffers`, in one of few `Shape`s. A sentence that leaves is only asked for no more: its row
goes on, idle, until another sentence joins, or those that are left fit into fewer rows. The projection to the
vocabulary is no part of a recording. It is three kernels, and computes what is left of the batch and nothing else.

All but `GraphRecorder` is proved on a CPU, through the same interface: what is recorded there is simply run again. It
has never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from nmt.inference.buffers import Arena, Buffers, Shape, tensor_sizes
from nmt.logs import say
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe

# A step of one shape runs as it is until it is taken this often: to record it costs about as much as three more runs,
# which many a shape is never worth, and what comes before is the warm-up that a recording needs.
_WORTH_RECORDING = 3
# Graphs share the memory that they compute in, but each keeps a little of its own, on the device and on the host. There
# are seldom so many shapes; beyond, all are forgotten, and those that are needed come again.
_MOST_STEPS = 256

Run = Callable[[], None]


def can_capture(model: Transformer) -> bool:
    """Whether steps of a model can be recorded: not with relative positions, which differ from row to row here."""
    return model.recipe.positions != "relative"


# --- Recording -------------------------------------------------------------------------------------------------------


class Recorder(Protocol):
    """What can make one launch of many kernels."""

    def record(self, run: Run) -> Run:
        """What does the same as `run`, at the same addresses; for this it may run it any number of times."""

    def forget(self) -> None:
        """Nothing that was recorded will be run again."""


class PlainRecorder:
    """Records nothing: what is to be run again is run again. For a CPU, where only tests want this."""

    def record(self, run: Run) -> Run:
        """See `Recorder.record`."""
        return run

    def forget(self) -> None:
        """See `Recorder.forget`."""


class GraphRecorder:
    """Records CUDA graphs, which take the memory of what they compute on the way from one pool.

    They may share it because they are replayed one after the other on one stream, and what a step gives is no part of
    it. Stream and warm-up are as torch's notes on CUDA semantics ask for. A step that cannot be recorded runs as it is:
    slower, and the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run) -> Run:
        """See `Recorder.record`."""
        try:
            return self._recorded(run)
        except torch.OutOfMemoryError:
            raise  # for a batch of half the sentences there may be enough
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            say(f"a step of search cannot be recorded on {self._device} and runs kernel by kernel: {why}")
            return run

    def _recorded(self, run: Run) -> Run:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            self._stream.wait_stream(stream)
            with torch.cuda.stream(self._stream):  # so that nothing is set up for this stream while it is recorded
                run()
            stream.wait_stream(self._stream)
            # A server may search on the same GPU from other threads, and what they do must not end the recording.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
        return graph.replay

    def forget(self) -> None:
        """See `Recorder.forget`."""
        self._pool = torch.cuda.graph_pool_handle()  # torch refuses a pool all graphs of which are gone


# --- The model -------------------------------------------------------------------------------------------------------


@dataclass
class _Step:
    """A step in one shape. `run` takes it; count: how often it has been taken."""

    shape: Shape
    buffers: Buffers
    run: Run
    count: int = 0


def _take_step(model: Transformer, buffers: Buffers) -> None:
    """A step from tokens to `hidden`. Nothing in it is known to the host alone, and done twice it is as done once."""
    positions = buffers.positions[:, None].expand_as(buffers.tokens)
    buffers.hidden.copy_(model.decoder.step(model.tgt_embedding(buffers.tokens, positions), positions, buffers))


@dataclass
class StaticState:
    """What search carries from one step to the next: which rows of the buffers are its sentences.

    step:    the last one, or the one that comes first
    rows:    (sentences,) int64
    search:  the number of the search
    steps:   the most that any of the sentences may have taken
    end:     where in the ring the next step begins, but for whole rounds
    """

    step: _Step
    rows: Tensor
    search: int
    steps: int = 0
    end: int = 0

    @torch.inference_mode()
    def reorder(self, beam_index: Tensor) -> None:
        """See `DecoderState.reorder`."""
        mask = self.step.buffers.mask
        own = mask.index_select(0, self.rows)
        own = own.gather(2, beam_index[:, None, :, None].expand_as(own))
        mask.index_copy_(0, self.rows, own)

    @torch.inference_mode()
    def keep(self, sentence_index: Tensor) -> None:
        """See `DecoderState.keep`; it moves nothing yet."""
        self.rows = self.rows.index_select(0, sentence_index)


class CapturedModel:
    """A Transformer for search, the decoder's steps of which are recorded; the results are those of the Transformer.

    It has one set of buffers, so that there can be one search at a time: `start` ends the one before. They stay when
    the search is over, or has failed for want of memory; one of half the sentences fits into them. With a shortlist
    it searches as ever, and words are aligned by the Transformer itself. The weights must stay where they are.
    """

    def __init__(self, model: Transformer, recorder: Recorder | None = None) -> None:
        """By default steps are recorded where `model` lies on a GPU, and else only run."""
        weight = model.tgt_embedding.weight
        self._model = model
        self._recorder = recorder or (GraphRecorder(weight.device) if weight.is_cuda else PlainRecorder())
        self._arena = Arena(weight)
        self._steps: dict[Shape, _Step] = {}
        self._searches = 0

    @torch.inference_mode()
    def start(self, src: PackedSequences, beam_size: int) -> StaticState:
        """See `Transformer.start`."""
        encoded = self._model.start(src, beam_size)
        self._searches += 1
        step = self._step_of(Shape.holding(src.num_sentences, beam_size, beam_size, encoded.memory_mask.shape[3]))
        rows = torch.arange(src.num_sentences, device=src.tokens.device)
        step.buffers.clear()
        step.buffers.put(encoded, rows)
        return StaticState(step, rows, self._searches)

    @torch.inference_mode()
    def join(self, src: PackedSequences, state: StaticState, steps: int) -> None:
        """See `OpenModel.join`. They get rows that are idle, or more rows than there were."""
        self._check(state)
        encoded, now, state.steps = self._model.start(src, state.step.shape.beam), state.step.shape, steps
        sentences, src_len = len(state.rows) + src.num_sentences, encoded.memory_mask.shape[3]
        if sentences > now.rows or src_len > now.src_len:
            places = (steps + 1) * now.beam
            self._go_over(state, Shape.holding(sentences, now.beam, places, max(src_len, now.src_len)))
        busy = torch.zeros(state.step.shape.rows, dtype=torch.int64, device=state.rows.device)
        free = busy.index_fill_(0, state.rows, 1).argsort(stable=True)[: src.num_sentences]
        state.step.buffers.put(encoded, free)
        state.rows = torch.cat([state.rows, free])

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: StaticState) -> Tensor:
        """See `Transformer.step`. What it returns is fresh: only `hidden` is overwritten by the next step."""
        return self._model.log_probs(self.advance(tokens, state))

    @torch.inference_mode()
    def advance(self, tokens: Tensor, state: StaticState) -> Tensor:
        """See `Transformer.advance`. At the first step, too, each hypothesis is computed, though all are the same."""
        self._check(state)
        self._fit(state)
        step, buffers = state.step, state.step.buffers
        buffers.tokens.index_copy_(0, state.rows, tokens)
        step.count += 1
        if step.count == _WORTH_RECORDING:
            step.run = self._recorder.record(step.run)
        step.run()
        buffers.advance(state.rows)
        state.steps, state.end = state.steps + 1, state.end + step.shape.beam
        return buffers.hidden.index_select(0, state.rows)

    def logits_of(self, pieces: Tensor) -> Callable[[Tensor], Tensor]:
        """See `Transformer.logits_of`."""
        return self._model.logits_of(pieces)

    @property
    def recipe(self) -> ModelRecipe:
        """The Transformer's."""
        return self._model.recipe

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """See `Transformer.cross_attention`."""
        return self._model.cross_attention(src, tgt)

    def _check(self, state: StaticState) -> None:
        assert state.search == self._searches, "there is one search at a time, and a later one has begun"

    def _fit(self, state: StaticState) -> None:
        """Go over to another shape where the past has no more room, or where fewer rows are enough.

        A past that has become shorter, since the oldest sentences have left, goes on in as many places as it had until
        a quarter would do: the way back may be near.
        """
        now = state.step.shape
        wanted = Shape.holding(len(state.rows), now.beam, (state.steps + 1) * now.beam, now.src_len)
        if wanted.rows == now.rows and now.places // 4 < wanted.places <= now.places:
            return
        self._go_over(state, wanted)

    def _go_over(self, state: StaticState, shape: Shape) -> None:
        step = self._step_of(shape)
        step.buffers.take(state.step.buffers, state.rows, state.end, state.steps)
        state.step, state.rows = step, torch.arange(len(state.rows), device=state.rows.device)
        state.end = state.steps * shape.beam

    def _step_of(self, shape: Shape) -> _Step:
        """The step in a shape, whatever is in its buffers."""
        if shape not in self._steps:
            recipe = self._model.recipe
            sizes = tensor_sizes(recipe, shape)
            if len(self._steps) >= _MOST_STEPS or not self._arena.holds(sizes):
                self._steps.clear()
                self._recorder.forget()
                self._arena.make_room(sizes)
            buffers = Buffers.of(self._arena.tensors(sizes), recipe.num_decoder_layers)
            self._steps[shape] = _Step(shape, buffers, partial(_take_step, self._model, buffers))
        return self._steps[shape]
