"""A slim copy of EnvPool's MuJoCo models, without what only a camera sees.

EnvPool compiles the model once per env. The stock models of DMC carry an 800x800 sky, those of Playground
also tens of MB of visual meshes: 12 MB an env for DMC, 120 MB and 0.3 s for the G1 robot. The slim copy
holds rewritten XML: textures become 8x8, visual meshes a tetrahedron, all else links to the stock file.
Nothing is removed or reordered, so the physics is the same to the last bit, which is checked once per task.
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
from troop.envs.envpool.mjcf import slim_folder
from troop.envs.user_cache import cache_folder, write_whole

FORMAT = "3"  # raise it when the rewriting changes, so that old copies are not used
FAMILIES = {"envpool.mujoco.dmc": "mujoco/assets_dmc", "envpool.mujoco.playground": "mujoco/playground"}
PROBE_STEPS = 20

log = logging.getLogger(__name__)


def slim_base_path(id: str, module: str, stock: str) -> str:
    """The `base_path` to build task `id` with: the slim copy if it is proven equal, else `stock`."""
    models = FAMILIES.get(module)
    if models is None or not (Path(stock) / models).is_dir():
        return stock
    try:
        slim = _slim_copy(Path(stock), models)
        verdict = slim / "checked" / f"{id.replace('/', '_')}.txt"
        if not verdict.exists():
            write_whole(verdict, _compare(id, stock, str(slim)))
        if verdict.read_text() == "same":
            return str(slim)
        log.warning(
            "Slim assets differ from the stock ones for %s; it starts slowly with the stock ones.", id
        )
    except (OSError, ElementTree.ParseError) as error:
        log.warning("No slim assets for %s (%s); it starts slowly with the stock ones.", id, error)
    return stock


def _slim_copy(stock: Path, models: str) -> Path:
    """The folder of rewritten models, built if need be; safe against another process doing the same."""
    version = importlib.metadata.version("envpool")
    digest = hashlib.sha256(f"{FORMAT} {stock} {models}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"assets-{version}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="building-"))
    try:
        for directory in sorted({path.parent for path in (stock / models).rglob("*.xml")}):
            slim_folder(directory, temporary / directory.relative_to(stock))
        os.chmod(temporary, 0o755)
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, and built the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _compare(id: str, stock: str, slim: str) -> str:
    """`same` if one env of each makes the same short rollout, else why not."""
    try:
        shown = _rollout(id, slim)
    except Exception as error:  # EnvPool raises what its C++ side happened to throw
        return f"does not load: {error}"
    return "same" if np.array_equal(shown, _rollout(id, stock)) else "differs"


def _rollout(id: str, base_path: str) -> np.ndarray:
    pool: Any = import_envpool().make_gymnasium(id, num_envs=1, num_threads=1, seed=1, base_path=base_path)
    pool.reset()
    random = np.random.default_rng(0)
    seen = []
    for _ in range(PROBE_STEPS):
        obs, reward, *_ = pool.step(random.uniform(-1, 1, (1, *pool.action_space.shape)))
        arrays = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
        seen.append(np.concatenate([reward.ravel(), *(array.ravel() for array in arrays)]))
    pool.close()
    return np.stack(seen)
