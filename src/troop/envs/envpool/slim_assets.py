"""Slim copies of EnvPool's MuJoCo models, without the assets that only rendering uses.

EnvPool compiles the model once per env. The stock models of DMC contain an 800x800 sky texture, those of
Playground also tens of MB of visual meshes: 12 MB per env for DMC, 120 MB and 0.3 s for the G1 robot. In the
slim copy the XML is rewritten: textures become 8x8, visual meshes a tetrahedron, and everything else refers
to the stock files. No element is removed or reordered, so the simulation is bit-identical; a rollout per task
verifies this once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.envpool.mjcf import write_slim_models
from troop.envs.user_cache import user_cache_dir, write_atomically

FORMAT = "3"  # increment it when the rewriting changes: part of the copy's directory name
MODEL_DIRS = {"envpool.mujoco.dmc": "mujoco/assets_dmc", "envpool.mujoco.playground": "mujoco/playground"}
COMPARED_STEPS = 20

log = logging.getLogger(__name__)


def slim_base_path(id: str, module: str, stock: str) -> str:
    """Return EnvPool's `base_path` for task `id`: the slim copy if it is verified for the task, else `stock`.

    Builds the copy and verifies the task on first use; both results stay in the user's cache directory.
    """
    models = MODEL_DIRS.get(module)
    if models is None or not (Path(stock) / models).is_dir():
        return stock
    try:
        slim = _slim_copy(Path(stock), models)
        verdict = slim / "checked" / f"{id.replace('/', '_')}.txt"
        if not verdict.exists():
            write_atomically(verdict, _compare(id, stock, str(slim)))
        if verdict.read_text() == "same":
            return str(slim)
        log.warning("Slim assets of %s do not reproduce the stock ones; using the slower stock assets.", id)
    except (OSError, ElementTree.ParseError) as error:
        log.warning("Cannot build slim assets of %s (%s); using the slower stock assets.", id, error)
    return stock


def _slim_copy(stock: Path, models: str) -> Path:
    """Return the directory of slim models; builds it if needed. Safe to call from several processes."""
    version = importlib.metadata.version("envpool")
    digest = hashlib.sha256(f"{FORMAT} {stock} {models}".encode()).hexdigest()[:12]
    copy = user_cache_dir() / f"assets-{version}-{digest}"
    if copy.is_dir():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=copy.parent, prefix="building-"))
    try:
        for directory in sorted({path.parent for path in (stock / models).rglob("*.xml")}):
            write_slim_models(directory, temporary / directory.relative_to(stock))
        os.chmod(temporary, 0o755)
        try:
            os.rename(temporary, copy)
        except OSError:
            if not copy.is_dir():  # otherwise another process has built the same copy first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return copy


def _compare(id: str, stock: str, slim: str) -> str:
    """Return `same` if both assets yield the same short rollout, else the reason."""
    try:
        rollout = _rollout(id, slim)
    except Exception as error:  # EnvPool re-raises arbitrary C++ exceptions
        return f"does not load: {error}"
    return "same" if np.array_equal(rollout, _rollout(id, stock)) else "differs"


def _rollout(id: str, base_path: str) -> np.ndarray:
    """Return rewards and observations of one env under random actions, [COMPARED_STEPS, ...]."""
    pool: Any = import_envpool().make_gymnasium(id, num_envs=1, num_threads=1, seed=1, base_path=base_path)
    pool.reset()
    random = np.random.default_rng(0)
    rows = []
    for _ in range(COMPARED_STEPS):
        obs, reward, *_ = pool.step(random.uniform(-1, 1, (1, *pool.action_space.shape)))
        arrays = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
        rows.append(np.concatenate([reward.ravel(), *(array.ravel() for array in arrays)]))
    pool.close()
    return np.stack(rows)
