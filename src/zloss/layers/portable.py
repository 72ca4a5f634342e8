"""A factored weight on its way: to another device or dtype, into copies, and into and out of checkpoints.

V and its factors make one matrix only together, and the small state has a dtype of its own; torch, which moves, copies
and saves tensor by tensor, knows neither.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zloss.layers.conditioning import centred_moments
from zloss.layers.faults import DeviceReports
from zloss.layers.foreign_writes import is_one_matrix
from zloss.layers.precision import check_dtypes, exact_products
from zloss.layers.update import Factors
from zloss.layers.weight import FactoredWeight


class PortableWeight(FactoredWeight):
    """A `FactoredWeight` that can be moved, converted, copied, saved and loaded with torch's own tools."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PortableWeight":
        """Move or convert: V as asked, the state with it but in a dtype of its own (a round trip must not blunt it)."""
        check_dtypes(fn(torch.empty(0, dtype=self.V.dtype, device=self.V.device)).dtype, None, None)
        fits, has_gradient = self._settles_before_it_leaves(), self._has_gradient()
        before, kind, place = (
            self.factors()._asdict(),
            (self.V.device, self.V.dtype),
            self.V.data_ptr(),
        )
        # The state goes on its own, below: where it goes, there may be no float64 to put it in.
        super()._apply(lambda tensor: fn(tensor.to(self.V.dtype)), recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            source = getattr(self, name) if tensor.is_meta else tensor
            setattr(self, name, source.to(device=self.V.device, dtype=self._state_dtype()))
        if kind != (self.V.device, self.V.dtype):  # else a captured step goes on with what there is
            self._fused = None
            self._report = self._empty_report()
            self._reports = (
                DeviceReports()
            )  # what the old one keeps to use again is of another length or device
        if (*kind, place) != (self.V.device, self.V.dtype, self.V.data_ptr()):
            if has_gradient:
                warnings.warn(
                    "the gradient recorded for this layer was lost as it was moved: step first",
                    stacklevel=2,
                )
            self._forget_history()
        self._restore_mark()
        if fits and self.V.dtype.itemsize > kind[1].itemsize and not self.V.is_meta:
            self._sharpen()  # what is known of W was computed in the coarser dtype
        if fits:  # else the next use has to refuse it
            self._stamps = self._current_stamps()
        return self

    def __getstate__(self) -> dict[str, Any]:
        self._settles_before_it_leaves()
        # A copy has no gradient, as with torch's parameters, and no part in what this layer has under way on a device.
        nothing: dict[str, Any] = {
            "_records": [],
            "_captured_records": [],
            "_fused": None,
            "_mark": None,
        }
        return self.__dict__ | nothing | {"_reports": DeviceReports()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._restore_mark()
        self._is_copy = self._is_unproven = True
        self._stamps = self._current_stamps()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        before, now = self._stamps, self._current_stamps()
        self._settles_before_it_leaves()
        if (
            now[1:] == before[1:]
        ):  # who goes on to write to the factors too must be found to have written to all
            self._stamps = (before[0], *self._stamps[1:])
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "gradient_mark"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        own = {prefix + name: getattr(self, name) for name in ("V", *Factors._fields)}
        shapes = {key: getattr(state_dict.get(key), "shape", None) for key in own}
        fitting = {key: tensor for key, tensor in own.items() if tensor.shape == shapes[key]}
        kept = {prefix + "gradient_mark": self.gradient_mark.detach()}
        blunt = {
            key: state_dict[key].to(own[key].dtype)
            for key in fitting
            if state_dict[key].dtype.itemsize < 4
        }
        kept |= blunt
        is_coarse = any(
            state_dict[key].dtype.itemsize < tensor.dtype.itemsize
            for key, tensor in fitting.items()
        )
        fault = "they load together" if 0 < len(fitting) < len(own) else None
        if (
            len(fitting) == len(own)
            and not blunt
            and not _make_one_matrix([state_dict[key] for key in own])
        ):
            fault = "these do not, as when factors are averaged"
        if fault is not None:
            kept |= fitting
            args[-1].append(
                f"V and its factors make one matrix: {fault}, so none of them was loaded"
            )
        super()._load_from_state_dict(state_dict | kept, prefix, *args)
        self._restore_mark()
        self._refresh_copies()
        self._forget_history()
        if blunt and not self.V.is_meta:
            self._refactor()  # factors that were rounded to half precision no longer fit each other
        elif is_coarse and not self.V.is_meta:
            self._sharpen()  # as after a conversion
        self._own_weights()

    @torch.no_grad()
    def _settles_before_it_leaves(self) -> bool:
        """Settle while there is a trace of what others wrote: a checkpoint, a copy and another place have none.

        What leaves no matrix may leave all the same: it is refused where it is used.
        """
        was_unproven = self._is_unproven
        settles = self._settles()
        self._is_unproven |= was_unproven
        return settles

    @torch.no_grad()
    def _sharpen(self) -> None:
        """Compute anew what follows from V, U and omega."""
        with exact_products(self.V.device.type):
            self.U_inv.copy_(torch.linalg.inv(self.U))
            mean, gram = centred_moments(self.V, self.U.dtype, self.product_dtype)
            self.wbar.copy_(mean @ self.U + self.omega)
            self.gram.copy_(self.U.T @ gram @ self.U)
        self._refresh_copies()


def _make_one_matrix(loaded: list[Tensor]) -> bool:
    V, *factors = (tensor.detach() for tensor in loaded)
    on_device = Factors(
        *(factor.to(V.device, torch.promote_types(factor.dtype, V.dtype)) for factor in factors)
    )
    return V.is_meta or is_one_matrix(V, on_device)
