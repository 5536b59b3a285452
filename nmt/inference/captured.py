"""Search with CUDA graphs: each decoder step is captured once per shape and replayed with one launch.

A step launches about a hundred small kernels, which takes the host longer than the GPU needs to run them. A CUDA graph
launches all of them at once, but its addresses and sizes are fixed. The tensors of a search are therefore `Buffers` in
one of few `Shape`s. The row of a finished sentence stays idle until it is refilled or the remaining sentences fit a
smaller shape. The output projection is not captured: it is three kernels, and runs only on rows in use.

Tests capture and replay on a simulated GPU. `GraphRecorder` has not yet run on a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from nmt.devices.memory import capture_lock
from nmt.inference.buffers import Arena, Buffers, Shape, tensor_sizes
from nmt.inference.wrapped import WrappedModel
from nmt.logs import say
from nmt.model.transformer import Transformer
from nmt.models import TranslationModel
from nmt.packing.packed import PackedSequences

# A shape is captured at its third step: a capture runs the step twice, which is too much for rare shapes, and needs
# eager steps as warm-up.
_CAPTURE_AT = 3
# Each graph keeps some memory on device and host, so all graphs are dropped after this many shapes, which is rare.
_MAX_STEPS = 256

Run = Callable[[], None]


def can_capture(model: TranslationModel) -> TypeGuard[Transformer]:
    """Return whether steps can be captured: not with relative positions, because `StaticCache` has no distances."""
    return isinstance(model, Transformer) and model.recipe.positions != "relative"


class Recorder(Protocol):
    """Captures functions as graphs."""

    def record(self, run: Run) -> Run:
        """Return a function that repeats `run` on the same addresses; may call `run` any number of times."""

    def clear(self) -> None:
        """Drop all graphs."""


class EagerRecorder:
    """Runs functions eagerly, for tests on a CPU."""

    def record(self, run: Run) -> Run:
        """See `Recorder.record`."""
        return run

    def clear(self) -> None:
        """See `Recorder.clear`."""


class GraphRecorder:
    """Captures CUDA graphs, which share one pool for intermediate memory.

    Sharing is safe because graphs are replayed one after the other on one stream, and their outputs are not in the
    pool. Streams and warm-up follow torch's notes on CUDA semantics. If a capture fails, all later steps run eagerly:
    some versions of torch do not release the memory pool of a failed capture, and then later captures fail too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_failed = False
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Run) -> Run:
        """See `Recorder.record`."""
        if self._has_failed:
            return run
        try:
            return self._capture(run)
        except torch.OutOfMemoryError:
            raise  # the search is repeated with a smaller batch
        except RuntimeError as error:
            self._has_failed = True
            reason = str(error).partition("\n")[0]
            say(f"CUDA graph capture failed on {self._device}; search continues without graphs: {reason}")
            return run

    def _capture(self, run: Run) -> Run:
        graph = torch.cuda.CUDAGraph()
        # Only one capture may be underway in a process, because beginning one synchronizes the device.
        with capture_lock, torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            self._stream.wait_stream(stream)
            try:
                try:
                    with torch.cuda.stream(self._stream):  # initialize libraries for this stream before the capture
                        run()
                finally:  # also if memory runs out: the next search writes to the same buffers
                    stream.wait_stream(self._stream)
                # thread_local: other threads of a server may use the GPU during the capture.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    run()
            finally:
                torch.cuda.set_stream(stream)  # `torch.cuda.graph` does not restore it if ending the capture fails
        return graph.replay

    def clear(self) -> None:
        """See `Recorder.clear`."""
        self._pool = torch.cuda.graph_pool_handle()  # torch rejects a pool without live graphs


@dataclass
class _Step:
    """A step in one shape. run: function that computes it; count: how many times it ran."""

    shape: Shape
    buffers: Buffers
    run: Run
    count: int = 0


def _decode_step(model: Transformer, buffers: Buffers) -> None:
    """Run the decoder from `tokens` to `hidden`. Idempotent and without host state, as capture requires."""
    positions = buffers.positions[:, None].expand_as(buffers.tokens)
    buffers.hidden.copy_(model.decoder.step(model.tgt_embedding(buffers.tokens, positions), positions, buffers))


@dataclass
class StaticState:
    """State of one search.

    step:      step in the current shape
    rows:      (sentences,) int64, rows of the buffers in use
    search_id: identifies the search that owns the buffers
    steps:     at least the number of steps of each sentence in the batch
    ring_end:  slot of the next step, modulo the capacity
    """

    step: _Step
    rows: Tensor
    search_id: int
    steps: int = 0
    ring_end: int = 0

    @torch.inference_mode()
    def reorder(self, beam_index: Tensor) -> None:
        """See `DecoderState.reorder`."""
        mask = self.step.buffers.mask
        selected = mask.index_select(0, self.rows)
        selected = selected.gather(2, beam_index[:, None, :, None].expand_as(selected))
        mask.index_copy_(0, self.rows, selected)

    @torch.inference_mode()
    def select(self, sentence_index: Tensor) -> None:
        """See `DecoderState.select`. Buffers do not move.

        Idle rows return to position 0. They are computed too, and the position after the last has no encoding.
        """
        self.rows = self.rows.index_select(0, sentence_index)
        positions = self.step.buffers.positions
        positions.copy_(torch.zeros_like(positions).index_copy_(0, self.rows, positions.index_select(0, self.rows)))


class CapturedModel(WrappedModel[Transformer]):
    """A Transformer for search with captured decoder steps; its results equal those of the wrapped model.

    There is one set of buffers, so `start` ends the previous search. Buffers are kept after a search. Weights must keep
    their addresses.
    """

    def __init__(self, model: Transformer, recorder: Recorder | None = None) -> None:
        """recorder: by default CUDA graphs on a GPU, and eager steps elsewhere."""
        weight = model.tgt_embedding.weight
        super().__init__(model)
        self._recorder = recorder or (GraphRecorder(weight.device) if weight.is_cuda else EagerRecorder())
        self._arena = Arena(weight)
        self._steps: dict[Shape, _Step] = {}
        self._search_id = 0

    @torch.inference_mode()
    def start(self, src: PackedSequences, beam_size: int) -> StaticState:
        """See `Transformer.start`."""
        encoded = self._model.start(src, beam_size)
        self._search_id += 1
        step = self._get_step(Shape.at_least(src.num_sentences, beam_size, beam_size, encoded.memory_mask.shape[3]))
        rows = torch.arange(src.num_sentences, device=src.tokens.device)
        step.buffers.clear()
        step.buffers.insert(encoded, rows)
        return StaticState(step, rows, self._search_id)

    @torch.inference_mode()
    def refill(self, src: PackedSequences, state: StaticState, steps: int) -> None:
        """See `RefillableModel.refill`. New sentences take idle rows, or a larger shape."""
        self._check(state)
        shape = state.step.shape
        encoded = self._model.start(src, shape.beam)
        state.steps = steps
        sentences, src_len = len(state.rows) + src.num_sentences, encoded.memory_mask.shape[3]
        if sentences > shape.batch or src_len > shape.src_len:
            capacity = (steps + 1) * shape.beam
            self._move(state, Shape.at_least(sentences, shape.beam, capacity, max(src_len, shape.src_len)))
        is_used = torch.zeros(state.step.shape.batch, dtype=torch.int64, device=state.rows.device)
        idle = is_used.index_fill_(0, state.rows, 1).argsort(stable=True)[: src.num_sentences]
        state.step.buffers.insert(encoded, idle)
        state.rows = torch.cat([state.rows, idle])

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: StaticState) -> Tensor:
        """See `Transformer.step`. The result is a new tensor."""
        return self._model.log_probs(self.advance(tokens, state))

    @torch.inference_mode()
    def advance(self, tokens: Tensor, state: StaticState) -> Tensor:
        """See `Transformer.advance`, except that the first step computes every hypothesis."""
        self._check(state)
        self._fit_shape(state)
        step, buffers = state.step, state.step.buffers
        buffers.tokens.index_copy_(0, state.rows, tokens)
        step.count += 1
        if step.count == _CAPTURE_AT:
            step.count = 0  # if recording runs out of memory, the step is captured later
            step.run = self._recorder.record(step.run)
            step.count = _CAPTURE_AT
        step.run()
        buffers.advance(state.rows)
        state.steps += 1
        state.ring_end += step.shape.beam
        return buffers.hidden.index_select(0, state.rows)

    def _check(self, state: StaticState) -> None:
        assert state.search_id == self._search_id, "a later search has reused the buffers"

    def _fit_shape(self, state: StaticState) -> None:
        """Change the shape if the KV cache is full or fewer rows suffice.

        If the batch size does not change, capacity shrinks only when a quarter suffices, because it often grows again.
        """
        shape = state.step.shape
        needed = Shape.at_least(len(state.rows), shape.beam, (state.steps + 1) * shape.beam, shape.src_len)
        if needed.batch != shape.batch or not shape.capacity // 4 < needed.capacity <= shape.capacity:
            self._move(state, needed)

    def _move(self, state: StaticState, shape: Shape) -> None:
        """Move the sentences of a search to another shape."""
        step = self._get_step(shape)
        step.buffers.copy_from(state.step.buffers, state.rows, state.ring_end, state.steps)
        state.step, state.rows = step, torch.arange(len(state.rows), device=state.rows.device)
        state.ring_end = state.steps * shape.beam

    def _get_step(self, shape: Shape) -> _Step:
        """Return the step in a shape; the contents of its buffers are undefined."""
        if shape not in self._steps:
            recipe = self._model.recipe
            sizes = tensor_sizes(recipe, shape)
            if len(self._steps) >= _MAX_STEPS or not self._arena.fits(sizes):
                self._steps.clear()
                self._recorder.clear()
                self._arena.grow(sizes)
            buffers = Buffers.from_tensors(self._arena.tensors(sizes), recipe.num_decoder_layers)
            self._steps[shape] = _Step(shape, buffers, partial(_decode_step, self._model, buffers))
        return self._steps[shape]
