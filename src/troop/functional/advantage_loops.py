"""GAE and V-trace over [T, B] in float32, compiled by numba.

One row is a function that is not inlined: only so does the compiler use vector instructions, which are 2.5
times faster here. In a loop over two dimensions it would have to prove that ten arrays do not overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]
Number = Any  # of the arrays' type

# Constants of `exponential`.
LOWER, UPPER, HALF, ONE = (np.float32(x) for x in (-87.0, 88.0, 0.5, 1.0))
LOG2_E, LN2_HIGH, LN2_LOW = (np.float32(x) for x in (1.44269504, 0.693359375, -2.12194440e-4))
COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
POLYNOMIAL = tuple(np.float32(x) for x in COEFFICIENTS)


@njit(cache=True, nogil=True, inline="never")
def gae_row(
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    gae_lambda: Number,
    last: Array,
    advantage: Array,
) -> None:
    """Write A_t = delta_t + lambda discount_t trace_t A_{t+1} of one step; `last` holds A_{t+1}, then A_t."""
    for b in range(len(last)):
        decay = discount[b] * trace[b] * gae_lambda
        delta = reward[b] + discount[b] * next_value[b] - value[b]
        last[b] = delta + decay * last[b]
        advantage[b] = last[b]


@njit(cache=True, nogil=True)
def gae_loop(
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    gae_lambda: Number,
    last: Array,
    advantage: Array,
) -> None:
    """Write the advantages of all steps; `last` [B] is zero."""
    for t in range(len(reward) - 1, -1, -1):
        gae_row(reward[t], discount[t], value[t], next_value[t], trace[t], gae_lambda, last, advantage[t])


@njit(inline="always")
def exponential(x: Number) -> Number:
    """Return e^x of a float32, to 1e-7; the limits are e^-87 and e^88, and NaN stays NaN.

    2^k e^r with x = k ln 2 + r and a polynomial of r (Cephes' expf). Unlike a call of exp, it becomes
    vector instructions in the loop that contains it.
    """
    x = UPPER if x > UPPER else x
    x = LOWER if x < LOWER else x
    k = np.floor(x * LOG2_E + HALF)
    r = x - k * LN2_HIGH - k * LN2_LOW
    p = POLYNOMIAL[0]
    for coefficient in POLYNOMIAL[1:]:
        p = p * r + coefficient
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)  # the bits of 2^k
    return (p * r * r + r + ONE) * power


@njit(cache=True, nogil=True, inline="never", fastmath={"contract"})
def vtrace_row(
    log_ratio: Array,
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    limits: tuple[Number, Number, Number, Number],
    last: Array,
    target: Array,
    advantage: Array,
) -> None:
    """Write v_t and A_t of one step; `last` holds v - V of the step after t, then of t."""
    rho_bar, c_bar, pg_rho_bar, trace_lambda = limits
    for b in range(len(last)):
        ratio = exponential(log_ratio[b])
        # min() would not become vector instructions; NaN stays NaN.
        pg_rho = pg_rho_bar if ratio > pg_rho_bar else ratio
        clipped_rho = rho_bar if ratio > rho_bar else ratio
        c = trace_lambda * (c_bar if ratio > c_bar else ratio)
        td_error = reward[b] + discount[b] * next_value[b] - value[b]
        carried = discount[b] * trace[b] * last[b]
        advantage[b] = pg_rho * (td_error + carried)
        last[b] = clipped_rho * td_error + c * carried
        target[b] = value[b] + last[b]


@njit(cache=True, nogil=True)
def vtrace_loop(
    log_ratio: Array,
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    limits: tuple[Number, Number, Number, Number],
    last: Array,
    target: Array,
    advantage: Array,
) -> None:
    """Write targets and advantages of all steps; `last` [B] is zero."""
    for t in range(len(reward) - 1, -1, -1):
        rows = log_ratio[t], reward[t], discount[t], value[t], next_value[t], trace[t]
        vtrace_row(*rows, limits, last, target[t], advantage[t])
