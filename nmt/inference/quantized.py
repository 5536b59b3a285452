"""Matmuls of 8-bit integers, for search on a CPU: half the time of bf16 where there is VNNI but no AMX."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.devices.precision import choose_precision, torch_dtype
from nmt.inference.prepacked import ROWS, PrepackedLinear
from nmt.recipe import UserError

# Numbers become integers from -127 to 127; those of x are moved by 128, because oneDNN wants none negative.
_LARGEST, _ZERO = 127, 128


class QuantizedLinear(PrepackedLinear):
    """x W^T + b with weights and x rounded to 8-bit integers, which are multiplied and summed without rounding.

    Each row of W and each row of x has a scale of its own, by which its largest number becomes 127. So what a row of x
    gives depends on no other row, to the last bit, whatever else is in the batch. Raises UserError where the device
    cannot do this.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) float32 -> (..., out) float32."""
        rows = x.flatten(0, -2)
        largest = _largest(rows)
        # Of a row of zeros this makes integers that mean nothing, which are multiplied by its largest number again.
        integers = (rows * (_LARGEST / largest)).round_().to(torch.int8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            integers.view(torch.uint8).bitwise_xor_(_ZERO),
            *(1.0, _ZERO, self.weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""),
        )
        out = sums.mul_(largest)
        if self.bias is not None:
            out.add_(self.bias)
        shaped: Tensor = out.unflatten(0, x.shape[:-1])
        return shaped

    @staticmethod
    def cache_dtype(device: torch.device) -> torch.dtype | None:
        """See `PrepackedLinear`: what comes of 8 bits needs no more than bf16, where that is native."""
        return torch_dtype(choose_precision("auto", device))

    def _pack(self, weight: Tensor) -> None:
        if not multiplies_integers(weight.device):
            raise UserError(
                "precision int8 needs a CPU with AVX-512-VNNI, which is not here; it must be fp32 or bf16; give one of "
                "them, or --engine ctranslate2"
            )
        largest = _largest(weight).clamp(min=torch.finfo(torch.float32).tiny)
        integers = (weight / largest * _LARGEST).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(integers, [ROWS, weight.shape[1]])
        # Of both factors: what is left to multiply by is the largest number of a row of x.
        self._scales = largest.flatten() / _LARGEST**2
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)


def multiplies_integers(device: torch.device) -> bool:
    """Whether products of integers are exact and fast here: on a CPU with AVX-512-VNNI, which all with AMX have too.

    Older processors sum pairs of products in 16 bits, which overflow.
    """
    return device.type == "cpu" and hasattr(torch.ops.onednn, "qlinear_pointwise") and torch.cpu._is_vnni_supported()


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude of each row: (rows, features) -> (rows, 1)."""
    return rows.abs().amax(dim=1, keepdim=True)
