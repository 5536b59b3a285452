"""8-bit matmuls for search on a CPU: half the time of bf16 on processors with VNNI but without AMX."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.devices.precision import choose_precision, torch_dtype
from nmt.errors import UserError
from nmt.inference.prepacked import ROWS, PrepackedLinear

# Values are quantized to [-127, 127]. Those of x are shifted by a zero point, because oneDNN needs unsigned integers.
_MAX_INT8, _ZERO_POINT = 127, 128


class QuantizedLinear(PrepackedLinear):
    """x W^T + b with W and x quantized to 8 bits and exact integer accumulation.

    Each row of W and x has its own scale, so the result of a row is bit-identical in every batch. Raises UserError if
    the device has no fast 8-bit matmuls.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) float32 -> (..., out) float32."""
        rows = x.flatten(0, -2)
        scale = _max_abs(rows)
        # A row of zeros gives undefined integers, which the scale of 0 cancels.
        integers = (rows * (_MAX_INT8 / scale)).round_().to(torch.int8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            integers.view(torch.uint8).bitwise_xor_(_ZERO_POINT),
            *(1.0, _ZERO_POINT, self.weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""),
        )
        out = sums.mul_(scale)
        if self.bias is not None:
            out.add_(self.bias)
        shaped: Tensor = out.unflatten(0, x.shape[:-1])
        return shaped

    @staticmethod
    def cache_dtype(device: torch.device) -> torch.dtype | None:
        """See `PrepackedLinear`: bf16, if native, is precise enough for results of 8-bit matmuls."""
        return torch_dtype(choose_precision("auto", device))

    def _pack(self, weight: Tensor) -> None:
        if not supports_int8(weight.device):
            raise UserError(
                f"precision int8 needs a CPU with AVX-512-VNNI; device {weight.device} is not one; use --precision "
                "fp32 or bf16, or --engine ctranslate2"
            )
        scale = _max_abs(weight).clamp(min=torch.finfo(torch.float32).tiny)
        integers = (weight / scale * _MAX_INT8).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(integers, [ROWS, weight.shape[1]])
        # `forward` only multiplies by the maximum of each row of x, so these scales include the divisors of W and x.
        self._scales = scale.flatten() / _MAX_INT8**2
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)


def supports_int8(device: torch.device) -> bool:
    """Return whether 8-bit matmuls are exact and fast: on CPUs with AVX-512-VNNI, including all with AMX.

    Older processors sum pairs of products in 16 bits, which can overflow.
    """
    return device.type == "cpu" and hasattr(torch.ops.onednn, "qlinear_pointwise") and torch.cpu._is_vnni_supported()


def _max_abs(rows: Tensor) -> Tensor:
    """(rows, features) -> (rows, 1)."""
    return rows.abs().amax(dim=1, keepdim=True)
