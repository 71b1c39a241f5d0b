"""V-trace targets (Espeholt et al. 2018, section 4.1) with true successors at time limits."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.functional.advantage_kernels import use_kernel, vtrace_kernel


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    trace: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    trace_lambda: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the value targets v and the advantages A of the policy gradient, both [T, B], as all inputs.

    With rho_t = pi(a_t|x_t) / mu(a_t|x_t), `log_ratio` its logarithm, and c_t = lambda min(c_bar, rho_t):
    delta_t = min(rho_bar, rho_t) (r_t + discount_t V(successor) - V_t),
    v_t = V_t + delta_t + discount_t c_t trace_t (v_{t+1} - V_{t+1}),
    A_t = min(pg_rho_bar, rho_t) (r_t + discount_t v(successor) - V_t).
    `trace` is 0 at the last step of an episode, where v(successor) = V(successor) = `next_value`, and at
    T - 1 `next_value` is the bootstrap value. Rows that are not steps have v = V and A = 0 if their reward,
    discount, value and trace are 0.
    """
    inputs = (log_ratio, reward, discount, value, next_value, trace)
    if use_kernel(*inputs):
        return vtrace_kernel(inputs, (rho_bar, c_bar, pg_rho_bar, trace_lambda))
    rho = log_ratio.exp()
    delta = rho.clamp_max(rho_bar) * (torch.addcmul(reward, discount, next_value) - value)
    decay = (discount * trace).mul_(trace_lambda) * rho.clamp_max(c_bar)
    correction = delta.clone()  # v - V
    rows, decays = correction.unbind(0), decay.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(decays[t], rows[t + 1])
    # The successor's target is V(successor) + its correction, unless the episode or the unroll ends there.
    successor = next_value.clone()
    successor[:-1].addcmul_(trace[:-1], correction[1:])
    advantage = rho.clamp_max(pg_rho_bar) * (torch.addcmul(reward, discount, successor) - value)
    return value + correction, advantage
