"""The parameters of several equal policies as the rows of one tensor.

Each policy keeps its own parameter objects: they become views of its row. So a forward pass, a
checkpoint or an evaluation of one policy goes on as ever, while all of them can be computed and
updated at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["WeightStack"]


class WeightStack:
    """Parameters of S policies side by side.

    Parameters
    ----------
    groups : sequence of mapping
        Each policy's ``parameter_groups()``: names, and parameters of the same shapes in the same
        order. A group's parameters stand next to each other in a row.

    Attributes
    ----------
    weights : nn.Parameter
        [S, P] float32, the memory of all of them.
    groups : dict of str to slice
        Where in a row each group stands.
    """

    def __init__(self, groups: Sequence[Mapping[str, Sequence[nn.Parameter]]]) -> None:
        self._owned = [[p for group in own.values() for p in group] for own in groups]
        first = self._owned[0]
        rows = [torch.cat([p.detach().reshape(-1) for p in own]) for own in self._owned]
        self.weights = nn.Parameter(torch.stack(rows))
        self._places: list[tuple[int, torch.Size]] = []
        offset = 0
        for parameter in first:
            self._places.append((offset, parameter.shape))
            offset += parameter.numel()
        self._index = {id(parameter): i for i, parameter in enumerate(first)}
        self.groups: dict[str, slice] = {}
        start = 0
        for name, group in groups[0].items():
            stop = start + sum(p.numel() for p in group)
            self.groups[name] = slice(start, stop)
            start = stop
        for row, own in enumerate(self._owned):
            views = self.rows_of(self.weights.data[row])
            for parameter, view in zip(own, views, strict=True):
                parameter.data = view

    def rows_of(self, row: Tensor) -> list[Tensor]:
        """Cut a row [P] into views of the parameters' shapes."""
        return [row[a : a + shape.numel()].view(shape) for a, shape in self._places]

    def stacked(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return the view [S, *shape] of [S, P] where one of the first policy's parameters is."""
        offset, shape = self._places[self._index[id(parameter)]]
        return tensor[:, offset : offset + shape.numel()].view(len(tensor), *shape)

    def release(self) -> None:
        """Give every policy memory of its own again."""
        for own in self._owned:
            for parameter in own:
                parameter.data = parameter.data.clone()
