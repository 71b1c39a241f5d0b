"""Actors and critics with a memory of their own: a GRU over observations (Ni et al. 2022)."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from troop.nets.actors import DeterministicActor, GaussianActor
from troop.nets.critics import Critics
from troop.nets.recurrent import CoreState, RecurrentCore

Actor = TypeVar("Actor", DeterministicActor, GaussianActor)


class Memory(nn.Module):
    """A linear layer with ReLU and a GRU; the features of a step are the outputs of both.

    It reads the first `inputs` columns of observations; the next `appended` ones are features themselves.
    With `shortcut` the first ones are features, too.
    """

    def __init__(
        self, inputs: int, embedding: int, size: int, appended: int = 0, shortcut: bool = False
    ) -> None:
        super().__init__()
        self.inputs, self.copied = inputs, slice(0 if shortcut else inputs, inputs + appended)
        self.features = embedding + size + self.copied.stop - self.copied.start
        self.embed = nn.Linear(inputs, embedding)
        self.core = RecurrentCore("gru", embedding, size)

    def initial_state(self, rows: int) -> CoreState:
        """Return the state of new episodes: zeros [rows, size]."""
        return self.core.initial_state(rows)

    def forward(self, x: Tensor, state: CoreState, started: Tensor | None = None) -> tuple[Tensor, CoreState]:
        """Return features [T, B, features] for x [T, B, columns], and the states after each step.

        `state` [B, size] precedes entry 0; `started` [T, B] marks first observations of episodes.
        """
        embedded = functional.relu(self.embed(x[..., : self.inputs]))
        y, states = self.core(embedded, state, started)
        return torch.cat((y, embedded, x[..., self.copied]), -1), states


class MemoryActor(nn.Module, Generic[Actor]):
    """A memory and an actor over its features."""

    def __init__(self, memory: Memory, head: Actor) -> None:
        super().__init__()
        self.memory = memory
        self.head: Actor = head


class MemoryCritics(nn.Module):
    """A memory that all critics share, and the critics over (features, action)."""

    def __init__(self, memory: Memory, head: Critics) -> None:
        super().__init__()
        self.memory, self.head = memory, head
