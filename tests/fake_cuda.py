"""A GPU that is not there: whole updates and searches on tensors of device `cuda` that have no contents.

`fake_cuda` builds on torch's fake tensors, which know their shape, type and device, and nothing else. In it, code fails

- where tensors of the host and of the device meet in one operation (a host tensor without dimensions may, as in torch);
- where it reads what only the device knows (`WaitError`): `item`, `tolist`, `bool`, `nonzero`, a boolean mask as an
  index, `torch.equal`, `repeat_interleave` without its output size, `torch.cuda.synchronize` and their kind;
- where it copies between host and device and blocks: from memory that is not pinned or without `non_blocking`, a Python
  list or host tensor as an index, a number stored at tensor indices, `torch.tensor(..., device=...)`.

The message names the line of nmt. Places that may wait are given by name, with what they read there, which is made up;
the harness counts how often each of them waits.

What this cannot show: the numerics of kernels, whether a kernel exists for the device, shape and type (a fake kernel is
another implementation), memory, time, the asynchrony itself (whether a stream or an allocator lets a buffer go too
early), what a library waits for inside one operation, the recording of CUDA graphs, NCCL, autotuning, and what inductor
or Triton make of a graph. AOTAutograd does not trace for a device that does not exist, so compiled updates run on fake
tensors of the host instead (tests/train/test_update.py). What is read is made up, so the results of a search mean
nothing.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import varlen
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

import nmt
from nmt.devices import precision, transfer
from nmt.model import attention

CUDA = torch.device("cuda", 0)
_META = torch.device("meta")
_PACKAGE = str(Path(nmt.__file__).parent)
_ROOT = Path(nmt.__file__).parents[1]

# What a place that may wait reads there: of the tensor that it asks for, numbers as `item` and `tolist` give them, or
# a tensor where the shape of the result depends on contents. None: it only copies.
Answer = Callable[[Tensor], Any] | None

_aten = torch.ops.aten
_COPIES = (_aten._to_copy.default, _aten.copy_.default)
_INDEXING = (_aten.index.Tensor, _aten._unsafe_index.Tensor)
_STORING = (_aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default)
_PINNING = (_aten._pin_memory.default, _aten.pin_memory.default)
_PINNED = (_aten.is_pinned.default,)


class WaitError(AssertionError):
    """The host waits for the device where it must not."""


class DeviceMixError(AssertionError):
    """Tensors of host and device meet in one operation."""


class FakeCuda(FakeTensorMode):
    """The mode in which operations run and are looked at; `waits` counts, by place, those that were allowed."""

    # Where there is a GPU, too, torch must not make a tensor on it.
    avoid_device_init = True

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()
        self._answers = answers
        self._copies: list[Tensor] = []  # to the host, that need not have arrived
        self._is_inside = False  # an operation, whose own operations stand for kernels that nobody needs to look at
        self.is_in_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at an operation, then let torch find out what comes out of it."""
        kwargs = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return self._device_for_engine(args[0])
        if kwargs.get("device") == _META:  # "cuda" without a number, of which torch asks the guard
            kwargs["device"] = CUDA
        if self._is_inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func in _PINNED:
            return getattr(args[0], "is_in_pinned_memory", False)
        if func in _PINNING:
            return self._pin(args[0])
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        return self._look_and_run(func, types, args, kwargs)

    def read(self, tensor: Tensor, what: str) -> Any:
        """The made-up contents of a tensor, which counts as a wait if it lies on the device."""
        if tensor.device.type == "cuda":
            return self.wait(what, tensor)
        if any(tensor is copy for copy in self._copies):
            raise WaitError(f"{_where()}: {what} reads a copy that may not have arrived")
        return self._answer(what, tensor)

    def wait(self, what: str, tensor: Tensor | None = None) -> Any:
        """Count a wait for the device, or fail where there must be none."""
        place = _place(_frame())
        if place not in self._answers:
            raise WaitError(f"{_where()} waits for the device: {what}")
        self.waits[place] += 1
        return None if tensor is None else self._answer(what, tensor)

    def synchronize(self) -> None:
        """Wait for all copies."""
        self.wait("synchronize")
        self._copies.clear()

    def _answer(self, what: str, tensor: Tensor) -> Any:
        answer = self._answers.get(_place(_frame()))
        if answer is None:
            raise WaitError(f"{_where()}: {what} reads what is not known here; give {_place(_frame())!r} an answer")
        with self:
            return answer(tensor)

    def _device_for_engine(self, tensor: FakeTensor) -> torch.device:
        """The device that C++ sees; autograd's engine must not ask for the streams of one that does not exist."""
        inside = self.is_in_backward or self.in_kernel_invocation
        return _META if inside and tensor.fake_device.type == "cuda" else tensor.fake_device

    def _pin(self, tensor: Tensor) -> Tensor:
        with self:
            pinned = tensor.clone()
        if tensor.device.type != "cpu":
            raise RuntimeError("only memory of the host can be pinned")
        pinned.is_in_pinned_memory = True  # type: ignore[attr-defined]
        return pinned

    def _look_and_run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is _aten._local_scalar_dense.default and getattr(args[0], "constant", None) is None:
            return self.read(args[0], "a number is read")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if tensor.device.type == "cuda"]
        if on_device and _depends_on_contents(func, args, kwargs):
            return self.wait(f"the shape or value of {func} depends on contents", on_device[0])
        why = _why_it_blocks(func, args, kwargs)
        if why is not None:
            self.wait(why)
        elif on_device and func not in _COPIES:
            on_host = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim]
            if on_host and func not in _INDEXING + _STORING:
                raise DeviceMixError(f"{_where()}: {func} gets tensors of the device and {on_host[0]} of the host")
        self._is_inside = True
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._is_inside = False
        if func in _COPIES and on_device and why is None and isinstance(result, Tensor) and result.device.type == "cpu":
            self._copies.append(result)
        return result


def _depends_on_contents(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host must wait for the contents of tensors to know the result, or its shape."""
    if func is _aten.repeat_interleave.Tensor and kwargs.get("output_size", args[1] if args[1:] else None) is not None:
        return False
    if func in _INDEXING:
        return args[0].device.type == "cuda" and _has_mask(args[1])
    if func in _STORING:  # one number at a mask is a masked fill
        return args[0].device.type == "cuda" and _has_mask(args[1]) and args[2].numel() != 1
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _why_it_blocks(func: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
    """Which blocking copy between host and device an operation makes, if any."""
    if func in _COPIES:
        source = args[0] if func is _aten._to_copy.default else args[1]
        target = torch.device(kwargs.get("device") or args[0].device)
        non_blocking = kwargs.get("non_blocking", args[2] if func is _aten.copy_.default and args[2:] else False)
        if source.device.type == target.type:
            return None
        if target.type == "cpu":
            return None if non_blocking else "it copies from the device"
        is_pinned = getattr(source, "is_in_pinned_memory", False)
        return None if non_blocking and is_pinned else "it copies from memory that is not pinned, or blocks"
    if func in _INDEXING + _STORING and args[0].device.type == "cuda":
        if any(index is not None and index.device.type == "cpu" for index in args[1]):
            return "it copies an index from the host"
        if func in _STORING and args[2].device.type == "cpu" and not _has_mask(args[1]):
            return "it copies a number from the host, to store it at indices"
    return None


def on_gpu(module: nn.Module) -> nn.Module:
    """The module, built outside, with weights and buffers of the same sizes and types on the device."""
    moved: dict[int, Tensor] = {}  # tied weights stay tied
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    like = torch.empty_like(tensor, device=CUDA)
                    is_weight = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(like, tensor.requires_grad) if is_weight else like
                tensors[name] = moved[id(tensor)]  # type: ignore[assignment]
    return module


# --- Which line it is ------------------------------------------------------------------------------------------------


def _frame() -> Any:
    """The innermost frame of nmt, which asks `nmt.devices.transfer` to copy; that of a test where there is none."""
    first: Any = sys._getframe(1)
    frame = first
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and name != transfer.__file__:
            return frame
        frame = frame.f_back
    frame = first
    while frame.f_back is not None and not Path(frame.f_code.co_filename).name.startswith("test_"):
        frame = frame.f_back
    return frame


def _place(frame: Any) -> str:
    """The name of a place that may wait: the file within nmt, and the function."""
    path = Path(frame.f_code.co_filename)
    function = re.sub(r"(\.<locals>\.<\w+>)+$", "", frame.f_code.co_qualname)  # of a comprehension, where it stands
    return f"{path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name}:{function}"


def _where() -> str:
    frame = _frame()
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path}:{frame.f_lineno} ({_place(frame)})"


# --- What torch must believe -----------------------------------------------------------------------------------------


def install_device_guard() -> None:
    """Let C++ select the device `cuda`, to no effect, where torch is built without CUDA.

    A build with CUDA and no GPU gets a guard that does nothing from torch itself (`_ensureCUDADeviceGuardSet`), if the
    one that it has counts no devices; a build for CPUs has none. So it is given one that answers 0 to everything, which
    torch replaces at once. This must come before autograd's first backward pass, which starts a thread for each device.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    if torch.cuda.is_available() or not library.exists():
        return
    registry = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE")
    if registry[1] is None:
        zero = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
        methods = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
        registry[1] = ctypes.addressof(guard)
        torch._C._ensureCUDADeviceGuardSet()
        assert registry[1] != ctypes.addressof(guard), "torch has made no guard"


def varlen_kernel() -> dict[str, Any]:
    """What `nmt.model.attention` imports where there is a GPU; without one, the operation says what it would give."""
    has_window = "window_size" in inspect.signature(varlen.varlen_attn).parameters
    causality = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
    return {"varlen_attn": varlen.varlen_attn, "_VARLEN_CAUSAL": causality}


@contextmanager
def fake_cuda(answers: Mapping[str, Answer] | None = None) -> Iterator[FakeCuda]:
    """Within it `cuda:0` exists, for tensors without contents; answers: the places that may wait, see `Answer`.

    A place is "search/beam_search.py:beam_search", the file within nmt and the function.
    """
    mode = FakeCuda({} if answers is None else answers)
    stream = SimpleNamespace(synchronize=mode.synchronize, wait_stream=lambda _: None, wait_event=lambda _: None)
    run_backward = torch.autograd.graph._engine_run_backward

    def run_in_engine(*args: Any, **kwargs: Any) -> Any:
        mode.is_in_backward = True
        try:
            return run_backward(*args, **kwargs)
        finally:
            mode.is_in_backward = False

    class Recomputation(checkpoint._recomputation_hook):
        """What computes layers again in a backward pass is no part of the engine."""

        def __enter__(self) -> None:
            mode.is_in_backward = False
            super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            mode.is_in_backward = True

    def tolist(tensor: FakeTensor) -> Any:
        return mode.read(tensor, "tolist") if tensor.constant is None else tensor.constant.tolist()

    cuda = {
        "synchronize": lambda device=None: mode.synchronize(),
        "current_stream": lambda device=None: stream,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "fake",
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        for name, value in varlen_kernel().items():
            stack.enter_context(patch.object(attention, name, value, create=True))
        stack.enter_context(patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", run_in_engine))
        stack.enter_context(patch.object(checkpoint, "get_device_states", lambda *args: ([], [])))
        stack.enter_context(patch.object(checkpoint, "_recomputation_hook", Recomputation))
        stack.enter_context(patch.object(FakeTensor, "tolist", tolist))
        stack.enter_context(mode)
        stack.callback(_forget_devices)
        _forget_devices()
        yield mode


def _forget_devices() -> None:
    """What nmt remembers of devices holds for those that there are, or for those that there are not."""
    precision._query_features.cache_clear()
