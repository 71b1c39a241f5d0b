"""Small FlashSAC learners, and FlashSAC in plain PyTorch, written independently of `troop`."""

import copy
import math

import torch
from td3_cases import spec
from torch import nn

from troop.algorithms.flash_sac import FlashSACConfig

SMALL = {"actor_width": 8, "critic_width": 12, "atoms": 21}


def config(**changes):
    return FlashSACConfig(**(SMALL | changes))


def learner(seed=0, privileged=0, **changes):
    torch.manual_seed(seed)
    return config(**changes).algorithm(spec(privileged))


class PlainNet(nn.Module):
    """One network of torch's own layers, whose mode is set by `train()` and `eval()`."""

    def __init__(self, inputs, width, blocks, outputs, momentum):
        super().__init__()

        def norm(columns):
            return nn.BatchNorm1d(columns, momentum=momentum)

        self.first = nn.Sequential(norm(inputs), nn.Linear(inputs, width, bias=False))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width, bias=False),
                norm(4 * width),
                nn.ReLU(),
                nn.Linear(4 * width, width, bias=False),
                norm(width),
                nn.ReLU(),
            )
            for _ in range(blocks)
        )
        self.rms = nn.RMSNorm(width, eps=1e-6)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(self.rms(x))

    @torch.no_grad()
    def project(self):
        for module in self.modules():
            if isinstance(module, nn.Linear):
                for row in module.weight:
                    row /= row.norm()
            elif isinstance(module, nn.BatchNorm1d):
                length = (module.weight.square().sum() + module.bias.square().sum()).sqrt()
                for part in (module.weight, module.bias):
                    part *= math.sqrt(len(part)) / length
            elif isinstance(module, nn.RMSNorm):
                module.weight *= math.sqrt(len(module.weight)) / module.weight.norm()

    def flat(self):
        """Return all parameters in the order of the tested network."""
        parts = [self.first[0].weight, self.first[0].bias, self.first[1].weight]
        for block in self.blocks:
            parts += [block[0].weight, block[1].weight, block[1].bias]
            parts += [block[3].weight, block[4].weight, block[4].bias]
        return [*parts, self.rms.weight, self.last.weight, self.last.bias]

    def statistics(self):
        """Return the running means, then the running variances, of all BatchNorms in order."""
        norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm1d)]
        return torch.cat([n.running_mean for n in norms] + [n.running_var for n in norms])

    @torch.no_grad()
    def load(self, flat):
        start = 0
        for part in self.flat():
            part.copy_(flat[start : start + part.numel()].view_as(part))
            start += part.numel()
        assert start == len(flat)
        return self


def copies(net):
    """Return the parameters of each copy of a tested network, [copies, parameters]."""
    count = net.copies or 1
    return torch.cat([layer.detach().reshape(count, -1) for layer in net.layers], 1)


def statistics(net):
    """Return the running means and variances of each copy of a tested network, [copies, 2 * columns]."""
    count = net.copies or 1
    return torch.cat((net.running_mean.reshape(count, -1), net.running_var.reshape(count, -1)), 1)


class PlainFlashSAC:
    """Actor, two critics and temperature with torch.optim.Adam; every formula as in the paper's code."""

    def __init__(self, agent, cfg, obs, critic_obs, actions):
        sizes = (cfg.blocks, 2 * actions, cfg.batch_norm_momentum)
        self.cfg, self.actions = cfg, actions
        self.actor = PlainNet(obs, cfg.actor_width, *sizes).load(copies(agent.policy.actor)[0])
        self.critics = [
            PlainNet(critic_obs + actions, cfg.critic_width, cfg.blocks, cfg.atoms, cfg.batch_norm_momentum)
            for _ in range(2)
        ]
        for critic, parameters in zip(self.critics, copies(agent.critic), strict=True):
            critic.load(parameters)
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.alpha_init)))
        self.z = torch.linspace(-cfg.v_max, cfg.v_max, cfg.atoms)
        self.target_entropy = actions * (0.5 * math.log(2 * math.pi * math.e) + math.log(cfg.target_std))
        self.updates = 0
        critic_parameters = [p for critic in self.critics for p in critic.parameters()]
        self.adam = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=cfg.actor_lr),
            "critic": torch.optim.Adam(critic_parameters, lr=cfg.critic_lr),
            "alpha": torch.optim.Adam([self.log_alpha], lr=cfg.alpha_lr),
        }

    def policy(self, obs, train):
        """Return actions and log pi of the rows of `obs`, in train mode with the given further rows."""
        self.actor.train(train is not None)
        outputs = self.actor(obs if train is None else torch.cat((obs, train)))[: len(obs)]
        mean, raw = outputs[:, : self.actions], outputs[:, self.actions :]
        log_std = -10 + 6 * (1 + torch.tanh(raw))
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = mean + log_std.exp() * torch.randn_like(mean)
        log_det = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
        return torch.tanh(u), (normal.log_prob(u) - log_det).sum(1)

    def step(self, name, loss):
        done = min(1, self.updates / self.cfg.lr_updates)
        start = {"actor": self.cfg.actor_lr, "critic": self.cfg.critic_lr, "alpha": self.cfg.alpha_lr}[name]
        end = start * self.cfg.lr_end
        self.adam[name].param_groups[0]["lr"] = end + (start - end) * (1 + math.cos(math.pi * done)) / 2
        self.adam[name].zero_grad()
        loss.backward()
        self.adam[name].step()

    def update(self, obs, next_obs, critic_obs, next_critic_obs, batch):
        """Make one update; return its losses."""
        losses = {}
        if self.updates % self.cfg.policy_delay == 0:
            action, log_prob = self.policy(obs, next_obs)
            pairs = torch.cat((critic_obs, action), 1)
            q = torch.stack([critic.eval()(pairs).softmax(1) @ self.z for critic in self.critics])
            losses["loss/policy"] = (self.log_alpha.exp().detach() * log_prob - q.min(0).values).mean()
            self.step("actor", losses["loss/policy"])
            self.actor.project()
            entropy = -log_prob.detach().mean()
            self.step("alpha", self.log_alpha.exp() * (entropy - self.target_entropy))
        with torch.no_grad():
            action, log_prob = self.policy(next_obs, None)
        here = torch.cat((critic_obs, batch.action), 1)
        both = torch.cat((here, torch.cat((next_critic_obs, action), 1)))
        with torch.no_grad():
            target = self.target(both, log_prob, batch)
        cross_entropies = []
        for critic in self.critics:
            log_p = critic.train()(both)[: len(here)].log_softmax(1)
            cross_entropies.append(-(target * log_p).sum(1))
        losses["loss/critic"] = torch.stack(cross_entropies).mean()
        self.step("critic", losses["loss/critic"])
        for critic, slow in zip(self.critics, self.targets, strict=True):
            critic.project()
            with torch.no_grad():
                for s, p in zip(slow.parameters(), critic.parameters(), strict=True):
                    s.copy_((1 - self.cfg.tau) * s + self.cfg.tau * p)
        self.updates += 1
        return {name: float(loss) for name, loss in losses.items()}

    def target(self, both, log_prob, batch):
        """Return the projected target distributions, one row and one atom at a time."""
        p = [slow.train()(both)[len(log_prob) :].softmax(1) for slow in self.targets]
        bins, top = len(self.z), self.cfg.v_max
        target = torch.zeros(len(log_prob), bins)
        for row in range(len(log_prob)):
            lower = min((net[row] for net in p), key=lambda one: float(one @ self.z))
            for k in range(bins):
                future = self.z[k].item() - math.exp(self.log_alpha.item()) * log_prob[row].item()
                t = batch.reward[row].item() + batch.discount[row].item() * future
                b = (min(max(t, -top), top) + top) / (2 * top / (bins - 1))
                low = min(int(b), bins - 1)
                target[row, low] += lower[k].item() * (1 - (b - low))
                target[row, min(low + 1, bins - 1)] += lower[k].item() * (b - low)
        return target
