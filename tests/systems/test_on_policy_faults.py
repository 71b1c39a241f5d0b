"""Systems of trajectories under faults: envs that raise, hang, abort or return bad rows; kills on Ray."""

import os

import pytest
import torch
from host_killer import ReportedHostKiller, host_processes, with_pids
from recording_observer import RecordingObserver
from small_systems import flatten_state
from traced_env import FAULT_STEP, TracedEnvConfig, failed_instances, steps_taken

from troop.algorithms import APPOConfig, ImpalaConfig, PPOConfig
from troop.core.engine import Checkpoint, Until
from troop.core.env_calls import EnvFailure
from troop.core.errors import EnvFault, TrainingFault
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes, Ray, stall_monitor
from troop.engines.ray.cluster import ray_connection
from troop.envs import Toy
from troop.systems import A3C, IMPALA, SEED, DataParallel, OnPolicy

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=400, max_episode_steps=20))
PPO = PPOConfig(rollout_length=8, epochs=2, minibatches=1, hidden=(8, 8), core="gru", core_size=4)
A2C = PPOConfig(
    rollout_length=5,
    epochs=1,
    minibatches=1,
    clip=0.0,
    gae_lambda=1.0,
    normalize_advantages="none",
    hidden=(8,),
)
SYSTEMS = {
    "ppo": (OnPolicy(), PPO),
    "a2c": (OnPolicy(recreate_every=0), A2C),
    "a3c": (A3C(2), A2C),
    "data-parallel": (DataParallel(2), PPO),
    "impala": (IMPALA(2, 4), ImpalaConfig(unroll_length=5, hidden=(8, 8), core="lstm", core_size=4)),
    "appo": (IMPALA(2, 4), APPOConfig(rollout_length=5, minibatches=1, hidden=(8,))),
    "seed": (SEED(2, 1, 4), ImpalaConfig(unroll_length=5, hidden=(8,))),
}
FAULTS = ("raise", "abort", "hang", "nan")  # after the last one the instance continues
REASONS = {
    "raise": "step() of env 'test:TracedEnv' raised OSError: the simulator crashed",
    "hang": "in _fail",
}
LIMITS = {"threads": 1, "log_s": 0.05, "checkpoint_s": 0.3, "step_limit_s": 4.0, "restarts": 50}
# Actors of Ray take seconds to start, during which the driver does not hear from them.
ENGINES = {"processes": Processes(**LIMITS), "ray": Ray(**LIMITS | {"step_limit_s": 20.0})}


def program_of(name, env):
    system, algorithm = SYSTEMS[name]
    return system.program(algorithm, env, SETTINGS)


@pytest.fixture(scope="module")
def local_ray():
    """Start one Ray for all tests that need one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    with ray_connection("local", insecure=False, seconds=60):
        yield


@pytest.fixture
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return ENGINES[request.param]


class StopAfterFaults(RecordingObserver):
    """Requests a stop when all faults have happened and the program has made progress after the last."""

    at_last_fault = None

    def log(self, counters, metrics):
        super().log(counters, metrics)
        if self.at_last_fault is None and counters.env_faults:
            self.at_last_fault = counters

    def stop_requested(self):
        last = self.at_last_fault
        return (
            last is not None
            and min(self.counters.updates - last.updates, (self.counters.env_steps - last.env_steps) / 100)
            >= 2
        )


def check_finite(state):
    numbers = [x for x in flatten_state(state).values() if isinstance(x, torch.Tensor)]
    assert numbers and all(torch.isfinite(x).all() for x in numbers if x.is_floating_point())


def check_learned_state(state):
    """Check that the weights of the policy and the learners' states were saved and are finite."""
    check_finite({key: part for key, part in state.items() if "algorithm" in key or key == "policy"})


def cases():
    """Each system on processes, and the three kinds of systems on Ray; the rest takes minutes."""
    default = {("ppo", "processes"), ("a3c", "processes"), ("impala", "processes")}
    pairs = [(name, "processes") for name in SYSTEMS] + [(name, "ray") for name in ("ppo", "a3c", "impala")]
    for pair in pairs:
        yield pytest.param(*pair, marks=[] if pair in default else [pytest.mark.long])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "engine"), cases(), indirect=["engine"])
@pytest.mark.reliability("K10", "N1", "N4", "S1")
def test_envs_that_fail_cost_a_restart_each_and_bad_rows_none(name, engine, tmp_path):
    observer = StopAfterFaults()
    # Steps take a while: a host that dies before the launcher knows that it works counts as not startable.
    program = program_of(name, TracedEnvConfig(str(tmp_path), seconds=0.02, faults=FAULTS))
    result = engine.run(program, Until(minutes=8), 3, observer)
    assert result.status == "stopped", "the run ended before all faults"
    assert [steps_taken(tmp_path)[i] for i in failed_instances(tmp_path)[:-1]] == [FAULT_STEP] * 3
    assert result.counters.restarts >= len(FAULTS) - 1 and result.counters.env_faults == 1
    notes = "\n".join(observer.notes)
    for fault, reason in REASONS.items():
        assert reason in notes, f"no note about {fault}: {notes}"
    check_learned_state(observer.state)
    assert not host_processes(os.getpid()).keys() & program.nodes.keys()


ERRORS = {
    "raise": (EnvFailure, r"step\(\) of env 'test:TracedEnv' raised OSError: the simulator crashed"),
    "hang": (TrainingFault, r"env 'test:TracedEnv' has not returned for"),
    "shape": (EnvFault, r"returned obs\['obs'\] as .*\(\d, 2\); its spec declares .*\(\d, 3\)"),
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, "raise") for name in SYSTEMS]
    + [(name, fault) for name in ("ppo", "a3c", "data-parallel", "impala") for fault in ("hang", "shape")],
)
@pytest.mark.reliability("C5", "K10", "N4", "S1")
def test_failed_env_ends_an_inline_run_which_is_saved_and_can_be_continued(
    name, fault, tmp_path, monkeypatch
):
    monkeypatch.setattr(stall_monitor, "POLL_S", 0.05)
    engine, observer = Inline(threads=1, checkpoint_s=1e9, step_limit_s=2.0), RecordingObserver()
    program = program_of(name, TracedEnvConfig(str(tmp_path), faults=(fault,)))
    error, text = ERRORS[fault]
    with pytest.raises(error, match=text):
        engine.run(program, Until(env_steps=2000), 3, observer)
    saved, before, failed = observer.state, observer.counters, failed_instances(tmp_path)[0]
    assert before.updates > 0 and steps_taken(tmp_path)[failed] == FAULT_STEP + (fault == "shape")
    check_learned_state(saved)
    result = engine.run(program, Until(env_steps=400), 3, observer, Checkpoint(before, saved))
    assert result.status == "done" and result.counters.updates > before.updates


@pytest.mark.parametrize("name", ["ppo", "a3c", "impala"])
@pytest.mark.reliability("N4")
def test_wrong_shape_ends_a_run_in_processes_with_a_checkpoint(name, tmp_path):
    """Restarting a role does not help: the env's spec is wrong."""
    observer = RecordingObserver()
    program = program_of(name, TracedEnvConfig(str(tmp_path), faults=("shape",)))
    error, text = ERRORS["shape"]
    with pytest.raises(error, match=text):
        ENGINES["processes"].run(program, Until(minutes=3), 3, observer)
    check_learned_state(observer.state)
    assert not host_processes(os.getpid()).keys() & program.nodes.keys()


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.reliability("N1")
def test_no_learner_sees_a_row_that_is_not_finite(name):
    faults = ((7, 0, "nan_obs"), (12, 1, "inf_reward"), (12, 0, "nan_reward"), (33, 1, "inf_obs"))
    host = Inline().make_host(
        program_of(name, Toy("Faulty", 4, limit=9, discrete=True, faults=faults)), SETTINGS.seed
    )
    seen = []
    for role in host.roles.values():
        if hasattr(role, "algorithm"):

            def keep(batch, update=role.algorithm.update):
                seen.append(batch)
                return update(batch)

            role.algorithm.update = keep
    metrics = [step for _ in range(120) for step in host.step_all()]
    host.close()
    assert sum(int(step.get("count/env_faults", 0)) for step in metrics) >= len(faults)
    assert len(seen) > 5 and any(not batch.valid.all() for batch in seen)
    for batch in seen:
        check_finite({"obs": batch.obs, "final_obs": batch.final_obs, "reward": batch.reward})
    assert not any(float(step.get("count/skipped_updates", 0)) for step in metrics)


KILL_PLANS = {
    "ppo": (("trainer",), ("evaluator",)),
    "a3c": (("server",), ("worker0", "worker1")),
    "impala": (("learner",), ("actor0", "actor1"), ("queue",)),
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KILL_PLANS)
@pytest.mark.reliability("K2", "K5", "K6")
def test_killed_hosts_are_restarted_on_ray(name, local_ray):
    plan = KILL_PLANS[name]
    observer = ReportedHostKiller(plan, steps=200, updates=8)
    program = with_pids(program_of(name, Toy("Countdown", 4, limit=9, discrete=True)))
    result = ENGINES["ray"].run(program, Until(minutes=8), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    counters = [kill.counters for kill in observer.kills] + [result.counters]
    for killed, before, after in zip(plan, counters, counters[1:], strict=False):
        assert after.restarts == before.restarts + len(killed) and after.updates > before.updates
        for host in killed:
            assert any(f"{host} died" in note and "Ray worker died" in note for note in observer.notes)
