"""PolicyGraph: one step of a trained policy as a function of tensors; its memory is input and output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from troop.core.batch import State
from troop.core.env import Continuous, Obs
from troop.envs.last_step import LAST_ACTION, LAST_REWARD, one_hot_sizes
from troop.export.interface_graph import InterfaceGraph, TensorSpec
from troop.functional.distributions import Categorical
from troop.trained_policy import TrainedPolicy

FRAMES, ACTION, POLICY = "frames", "action", "policy"  # parts of the memory


class PolicyGraph(nn.Module):
    """What `TrainedPolicy.__call__` does in one step, without exploration.

    Inputs are the observations and, if the policy has memory (a recurrent state, stacked frames or the last
    action), `started` [rows], True where an episode begins and the memory of the row is not read, and the
    memory `state.*`; a policy that reads the last action also takes `reward` [rows], that of this action.
    Outputs are the action and the memory for the next step, `next_state.*`.
    """

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.policy, self.spec = policy.module, policy.spec
        self.interface = InterfaceGraph(policy.interface)
        stacks = policy.interface.frames.stack > 1  # else the env itself returns stacked frames, if any
        self.stacked = [name for name, field in self.spec.obs.items() if stacks and field.stack > 1]
        self.reads_last_step = LAST_ACTION in self.spec.obs
        self.is_recurrent = _is_recurrent(policy)
        self._memory = self._initial_memory(1)

    @property
    def inputs(self) -> list[TensorSpec]:
        """Names, shapes and dtypes of the arguments of `forward`."""
        inputs = self.interface.inputs
        if self._memory:
            inputs.append(TensorSpec("started", (), torch.bool, "started"))
        if self.reads_last_step:
            inputs.append(TensorSpec("reward", (), torch.float32, "reward"))
        return inputs + self._memory_specs("state")

    @property
    def outputs(self) -> list[TensorSpec]:
        """Names, shapes and dtypes of the results of `forward`."""
        return [self.interface.output, *self._memory_specs("next_state")]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the values of `outputs`, [rows, ...] each, for those of `inputs`."""
        values = dict(zip([each.name for each in self.inputs], tensors, strict=True))
        obs = self.interface.read({each.name: values[each.name] for each in self.interface.inputs})
        rows = tensors[0].shape[0]
        initial = self._initial_memory(rows)
        memory = {name: _where(values["started"], initial[name], values[f"state.{name}"]) for name in initial}
        following: dict[str, Tensor] = {}
        for name in self.stacked:
            frame, old = obs[name], memory[f"{FRAMES}.{name}"]
            first = frame.repeat(1, self.spec.obs[name].stack, 1, 1)
            obs[name] = _where(values["started"], first, torch.cat((old[:, frame.shape[1] :], frame), 1))
            following[f"{FRAMES}.{name}"] = obs[name]
        if self.reads_last_step:
            obs = obs | self._last_step(memory[ACTION], values["reward"], values["started"])
        state = self.policy.initial_state(rows)
        if self.is_recurrent:
            leaves = [memory[name] for name in _flatten(state)]
            state = pytree.tree_unflatten(leaves, pytree.tree_structure(state))
        # One constant row: the graph has the policy's branch without exploration, for any number of rows.
        output = self.policy.act(obs, state, torch.tensor([0.0]))
        if self.reads_last_step:
            following[ACTION] = output.action
        if self.is_recurrent:
            following |= _flatten(output.state)
        return self.interface.write(output.action), *(following[name] for name in initial)

    def _last_step(self, action: Tensor, reward: Tensor, started: Tensor) -> Obs:
        """Return the last action and reward as observations; zeros at the start of an episode."""
        kind = self.spec.action
        if isinstance(kind, Continuous):
            last = action.float().clamp(-1, 1)
        else:
            sizes = one_hot_sizes(kind)
            parts = zip(Categorical(sizes).parts(action), sizes, strict=True)
            last = torch.cat([functional.one_hot(part, size) for part, size in parts], -1).float()
        rows = {LAST_ACTION: last, LAST_REWARD: reward.float().clamp(-1, 1).unsqueeze(-1)}
        return {name: _where(started, torch.zeros_like(x), x) for name, x in rows.items()}

    def _initial_memory(self, rows: int) -> dict[str, Tensor]:
        """Return the memory at the start of an episode by its names in the order of inputs and outputs."""
        memory: dict[str, Tensor] = {}
        for name in self.stacked:
            field = self.spec.obs[name]
            memory[f"{FRAMES}.{name}"] = torch.zeros(rows, *field.shape, dtype=field.dtype)
        if self.reads_last_step:
            action = self.spec.action
            if isinstance(action, Continuous):
                memory[ACTION] = torch.zeros(rows, action.size)
            else:
                memory[ACTION] = torch.zeros(rows, dtype=torch.int64)
        return memory | _flatten(self.policy.initial_state(rows)) if self.is_recurrent else memory

    def _memory_specs(self, prefix: str) -> list[TensorSpec]:
        return [
            TensorSpec(f"{prefix}.{name}", tuple(x.shape[1:]), x.dtype, "state")
            for name, x in self._memory.items()
        ]


def _is_recurrent(policy: TrainedPolicy) -> bool:
    """Return whether acting changes the state of the policy; a state of exploration alone stays as it is."""
    state = policy.module.initial_state(2)
    if state is None:
        return False
    state = pytree.tree_map(lambda x: torch.rand_like(x) if x.is_floating_point() else x, state)
    obs = {name: torch.ones(2, *x.shape, dtype=x.dtype) for name, x in policy.spec.obs.items()}
    after = policy.module.act(obs, state, torch.zeros(2)).state
    return not all(map(torch.equal, pytree.tree_leaves(state), pytree.tree_leaves(after)))


def _flatten(state: State) -> dict[str, Tensor]:
    """Return the tensors of a policy's state by dotted names."""
    leaves, _ = pytree.tree_flatten_with_path(state)
    return {".".join((POLICY, *(_key(part) for part in path))): leaf for path, leaf in leaves}


def _key(part: object) -> str:
    return str(part.key if isinstance(part, pytree.MappingKey) else getattr(part, "idx", part))


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` in the rows that are True, else `old`."""
    return torch.where(rows.view(-1, *(1,) * (old.dim() - 1)), new, old)
