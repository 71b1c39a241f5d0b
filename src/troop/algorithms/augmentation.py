"""Augmentation of the images in a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from troop.core.batch import Transition
from troop.core.env import Obs
from troop.functional.random_shift import random_shift


def shift_images(batch: Transition, names: Collection[str], pad: int) -> Transition:
    """Shift the images `names` of `obs` and `next_obs`, each row by its own offset of up to `pad` pixels.

    Returns the batch itself if there is nothing to shift.
    """
    if not (names and pad):
        return batch

    def shifted(obs: Obs) -> Obs:
        return obs | {name: random_shift(obs[name], pad) for name in names}

    return dataclasses.replace(batch, obs=shifted(batch.obs), next_obs=shifted(batch.next_obs))
