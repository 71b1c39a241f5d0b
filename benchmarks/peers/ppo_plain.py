"""PPO in plain PyTorch on EnvPool, in the structure of CleanRL's single-file scripts; ppo.py calls it.

Storage tensors [T, N], one forward pass per step under no_grad, a loop for GAE, shuffled indices in NumPy,
one `backward` per minibatch, clip_grad_norm_, Adam; observation and reward normalisation with running
statistics that every env step updates. Written from the description of that code.
"""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import ppo_workload
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

Array = np.ndarray[Any, Any]


class RunningMoments:
    """Mean and variance of all rows so far."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, x: Array) -> None:
        """Merge the rows of `x`."""
        mean, var, count = x.mean(0), x.var(0), len(x)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        squares = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.var, self.count = squares / total, total


class Envs:
    """EnvPool with normalized observations and rewards; images as they are."""

    def __init__(self, workload: ppo_workload.Workload) -> None:
        options: dict[str, Any] = {"num_envs": workload.envs, "num_threads": workload.threads, "seed": 1}
        if workload.images:
            options |= {"episodic_life": True, "reward_clip": True}
        self.pool = envpool.make_gymnasium(workload.task, **options)
        self.images, self.gamma = workload.images, workload.gamma
        self.discrete = hasattr(self.pool.action_space, "n")
        self.obs_moments = RunningMoments(self.pool.observation_space.shape)
        self.return_moments, self.returns = RunningMoments(()), np.zeros(workload.envs)

    def reset(self) -> Array:
        """Return the first observations."""
        return self.normalized(self.pool.reset()[0])

    def normalized(self, obs: Array) -> Array:
        """Return observations with mean 0 and variance 1, clipped to +-10."""
        if self.images:
            return obs
        self.obs_moments.update(obs)
        moments = self.obs_moments
        scaled: Array = np.clip((obs - moments.mean) / np.sqrt(moments.var + 1e-8), -10, 10)
        return scaled.astype(np.float32)

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        """Return observations, rewards and which episodes ended."""
        if not self.discrete:
            action = np.clip(action, -1, 1).astype(np.float64)
        obs, reward, terminated, truncated, _ = self.pool.step(action)
        done = terminated | truncated
        if not self.images:
            self.returns = self.returns * self.gamma + reward
            self.return_moments.update(self.returns)
            self.returns[done] = 0.0
            reward = np.clip(reward / np.sqrt(self.return_moments.var + 1e-8), -10, 10)
        return self.normalized(obs), reward, done


def layer(module: nn.Linear | nn.Conv2d, gain: float = 2**0.5) -> nn.Module:
    """Initialise a layer with orthogonal weights and zero biases."""
    nn.init.orthogonal_(module.weight, gain)
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """Actor and critic."""

    log_std: nn.Parameter

    def __init__(self, workload: ppo_workload.Workload, obs_shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        self.images = workload.images
        self.torso: nn.Module = nn.Identity()
        if workload.images:
            self.torso = nn.Sequential(
                *(layer(nn.Conv2d(obs_shape[0], 32, 8, 4)), nn.ReLU()),
                *(layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()),
                *(layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten()),
                *(layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU()),
            )
            self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)
        else:
            self.actor = self.network(obs_shape[0], workload.hidden, actions, 0.01)
            self.critic = self.network(obs_shape[0], workload.hidden, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))

    @staticmethod
    def network(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Module:
        """Return linear layers with tanh between them."""
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [layer(nn.Linear(inputs, width)), nn.Tanh()]
            inputs = width
        return nn.Sequential(*layers, layer(nn.Linear(inputs, outputs), gain))

    def features(self, obs: Tensor) -> Tensor:
        """Return the input of both heads."""
        result: Tensor = self.torso(obs / 255.0 if self.images else obs)
        return result

    def value(self, obs: Tensor) -> Tensor:
        """Return V [N]."""
        result: Tensor = self.critic(self.features(obs)).flatten()
        return result

    def evaluate(
        self, obs: Tensor, discrete: bool, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return action (sampled if None), log-probability, entropy and value."""
        features = self.features(obs)
        outputs, value = self.actor(features), self.critic(features).flatten()
        if discrete:
            categorical: Any = Categorical(logits=outputs)
            action = categorical.sample() if action is None else action
            return action, categorical.log_prob(action), categorical.entropy(), value
        normal: Any = Normal(outputs, self.log_std.expand_as(outputs).exp())
        action = normal.sample() if action is None else action
        return action, normal.log_prob(action).sum(1), normal.entropy().sum(1), value


class PlainPPO:
    """Collects a rollout and learns from it, in turn."""

    def __init__(self, workload: ppo_workload.Workload) -> None:
        self.workload, self.envs = workload, Envs(workload)
        space = self.envs.pool.action_space
        self.actions = int(space.n) if self.envs.discrete else int(space.shape[0])
        obs = self.envs.reset()
        self.agent = Agent(workload, obs.shape[1:], self.actions)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=workload.lr, eps=1e-5)
        shape = (workload.length, workload.envs)
        self.next_obs, self.next_done = torch.as_tensor(obs), torch.zeros(workload.envs)
        self.obs = torch.zeros(*shape, *obs.shape[1:])
        self.action = torch.zeros(*shape, *(() if self.envs.discrete else (self.actions,)))
        self.log_prob, self.reward, self.done, self.value = (torch.zeros(shape) for _ in range(4))

    def collect(self) -> None:
        """Fill the storage with one rollout."""
        for t in range(self.workload.length):
            self.obs[t], self.done[t] = self.next_obs, self.next_done
            with torch.no_grad():
                action, log_prob, _, value = self.agent.evaluate(self.obs[t], self.envs.discrete)
            self.action[t], self.log_prob[t], self.value[t] = action, log_prob, value
            obs, reward, done = self.envs.step(action.numpy())
            self.reward[t] = torch.as_tensor(reward)
            self.next_obs, self.next_done = torch.as_tensor(obs), torch.as_tensor(done, dtype=torch.float32)

    def advantages(self) -> Tensor:
        """Return GAE; every end of an episode counts as a termination."""
        workload, advantage, last = self.workload, torch.zeros_like(self.reward), torch.zeros(())
        with torch.no_grad():
            next_value, alive = self.agent.value(self.next_obs.float()), 1 - self.next_done
        for t in reversed(range(workload.length)):
            delta = self.reward[t] + workload.gamma * next_value * alive - self.value[t]
            last = delta + workload.gamma * workload.gae_lambda * alive * last
            advantage[t], next_value, alive = last, self.value[t], 1 - self.done[t]
        return advantage

    def learn(self) -> None:
        """Make the passes over the rollout."""
        workload, advantage = self.workload, self.advantages()
        flat = [x.flatten(0, 1) for x in (self.obs, self.action, self.log_prob, self.value, advantage)]
        target, index = (advantage + self.value).flatten(), np.arange(workload.batch)
        for _ in range(workload.epochs):
            np.random.shuffle(index)
            for first in range(0, workload.batch, workload.minibatch):
                rows = torch.as_tensor(index[first : first + workload.minibatch])
                obs, action, old_log_prob, _, scaled = (x[rows] for x in flat)
                _, log_prob, entropy, value = self.agent.evaluate(obs, self.envs.discrete, action)
                ratio = (log_prob - old_log_prob).exp()
                scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
                clipped = ratio.clamp(1 - workload.clip, 1 + workload.clip)
                policy_loss = torch.max(-scaled * ratio, -scaled * clipped).mean()
                value_loss = 0.5 * ((value - target[rows]) ** 2).mean()
                loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                self.optimizer.step()


def main() -> None:
    """Train until the measurement is complete."""
    workload = ppo_workload.parse()
    torch.manual_seed(1)
    learner, clock = PlainPPO(workload), ppo_workload.Clock(workload)
    while True:
        learner.collect()
        learner.learn()
        if clock.rollout():
            break
    clock.report()


if __name__ == "__main__":
    main()
