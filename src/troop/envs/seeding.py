"""Seeds for backends that seed env i of a vector env with `seed + i`."""

from __future__ import annotations

import numpy as np


def hash_seed(seed: int) -> int:
    """Map `seed` to a pseudo-random seed in 0..2**31 - 2**20 - 1.

    Two vector envs with neighbouring seeds then share no env, and `seed + i` fits into 31 bits.
    """
    state = np.random.SeedSequence(seed % 2**64).generate_state(1)[0]
    return int(state) % (2**31 - 2**20)
