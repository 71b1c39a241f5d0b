"""Workers share envs, batch and replay equally, whatever their number; members of a group need a GPU each."""

import dataclasses

import pytest
import torch

from troop import api
from troop.algorithms import ImpalaConfig, PPOConfig, TD3Config
from troop.cli.train import parse_command
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes, Ray
from troop.envs import Toy
from troop.experiment import Experiment
from troop.recipes import RecipeArgs, data_parallel, find
from troop.replay.uniform import ReplaySize
from troop.roles.collector import EnvFactory
from troop.roles.update_schedule import UpdateSchedule
from troop.runs.directory import RunDirectory
from troop.systems import IMPALA, DataParallel, Sync, devices

SMALL = TD3Config(atoms=0, actor_hidden=(8,), critic_hidden=(8,))
REPLAYS = Sync(UpdateSchedule(16), replay_capacity=800)
ENV = Toy("PointMass", 8, limit=9)
SHARED = DataParallel(2, replays=REPLAYS, divide_among_workers=True)


def settings(device="cpu"):
    return RunSettings(3, device, Evaluation(episodes=2, env_steps=10**9))


def machine(monkeypatch, cores, gpus):
    """Let recipes see this many cores and CUDA devices."""
    monkeypatch.setattr(data_parallel, "cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def sizes(experiment):
    """Return envs, batch size and replay rows of each worker."""
    program = experiment.system.program(experiment.algorithm, experiment.env, experiment.settings())
    found = []
    for rank in range(experiment.system.workers):
        args = program.nodes[f"worker{rank}"].build.args
        factory, schedule = (
            next(x for x in args if type(x) is kind) for kind in (EnvFactory, UpdateSchedule)
        )
        envs = factory.make.func.__self__.envs
        rows = next(x.length for build in args for x in getattr(build, "args", ()) if type(x) is ReplaySize)
        found.append((envs, schedule.batch_size, rows * envs))
    return found


def with_workers(experiment, workers):
    return dataclasses.replace(experiment, system=dataclasses.replace(experiment.system, workers=workers))


@pytest.mark.parametrize("workers", [1, 2, 4, 32])
def test_all_workers_together_have_the_values_of_fasttd3(workers, monkeypatch):
    machine(monkeypatch, cores=64, gpus=8)
    args = RecipeArgs("CheetahRun-v1", device="cuda:0")
    experiment, alone = find("fasttd3-ddp").make(args), find("fasttd3").make(args)
    assert experiment.system.workers == 8 and experiment.until == alone.until
    shares = sizes(with_workers(experiment, workers))
    assert shares == [(1024 // workers, 32_768 // workers, 10_240 * 1024 // workers)] * workers
    assert shares == sizes(api.with_workers(experiment, workers))
    assert (alone.env.envs, alone.system.schedule.batch_size) == (1024, 32_768)


def test_workers_of_the_command_line_share_what_it_sets():
    command = (
        "fasttd3-ddp --env Pendulum-v1 --system.workers 3 --envs 6 --batch-size 30 --replay-capacity 900"
    )
    assert sizes(parse_command(command.split()).experiment) == [(2, 10, 300)] * 3


@pytest.mark.parametrize(
    "envs, batch_size, message",
    [
        (7, 16, "--envs is 7, which 2 workers cannot share equally; use 6 or 8, or another number"),
        (1, 16, "--envs is 1, which 2 workers cannot share equally; use 2, or another number"),
        (8, 15, "--system.replays.schedule.batch-size is 15, .* use 14 or 16, or another number"),
    ],
)
def test_totals_that_do_not_divide_are_refused_with_numbers_that_do(envs, batch_size, message):
    replays = dataclasses.replace(REPLAYS, schedule=UpdateSchedule(batch_size))
    system, env = dataclasses.replace(SHARED, replays=replays), ENV.with_envs(envs)
    with pytest.raises(BadInput, match=message):
        system.program(SMALL, env, settings())
    undivided = dataclasses.replace(system, divide_among_workers=False)
    assert sizes(Experiment(env, SMALL, undivided)) == [(envs, batch_size, 800 // envs * envs)] * 2


def test_rollouts_of_workers_are_of_their_share_of_the_envs():
    config = PPOConfig(rollout_length=4, minibatches=4, hidden=(8,))
    host = Inline().make_host(SHARED.program(config, ENV, settings()), 3)
    assert [host.roles[f"worker{rank}"].collector.envs for rank in range(2)] == [4, 4]
    host.close()


def test_run_continues_with_the_same_totals_on_other_numbers_of_workers(tmp_path):
    experiment = Experiment(
        ENV, SMALL, SHARED, Inline(threads=1), Until(env_steps=160), Evaluation(2, env_steps=10**9)
    )
    experiment.run(tmp_path / "run", quiet=True)
    for workers, env_steps in ((4, 320), (1, 480)):
        summary = api.resume(tmp_path / "run", workers=workers, env_steps=env_steps, quiet=True)
        assert summary.status == "done" and summary.env_steps == env_steps
        resumed = api.stored_experiment(RunDirectory.open(tmp_path / "run"))
        assert sizes(resumed) == [(8 // workers, 16 // workers, 800 // workers)] * workers


@pytest.mark.parametrize(
    "device, cores, gpus, ppo, fasttd3",
    [
        ("cpu", 1, 0, 2, 2),
        ("cpu", 6, 0, 6, 4),  # 128 envs and batches of 256
        ("cuda", 64, 1, 1, 1),
        ("cuda:1", 64, 3, 3, 2),  # 1,024 envs and batches of 32,768
        ("cuda", 64, 0, 1, 1),
    ],
)
def test_default_number_of_workers_is_that_of_cores_or_cuda_devices(
    device, cores, gpus, ppo, fasttd3, monkeypatch
):
    machine(monkeypatch, cores, gpus)
    for name in ("dd-ppo", "dd-ppo-paper"):
        assert find(name).make(RecipeArgs(device=device)).system.workers == ppo
    assert find("fasttd3-ddp").make(RecipeArgs(device=device)).system.workers == fasttd3


def test_envs_that_no_two_workers_can_share_are_refused_when_the_run_starts(monkeypatch):
    machine(monkeypatch, cores=4, gpus=0)
    experiment = find("fasttd3-ddp").make(RecipeArgs("Pendulum-v1", envs=7))
    with pytest.raises(BadInput, match="--envs is 7, which 4 workers cannot share equally; use 4 or 8"):
        sizes(experiment)
    assert sizes(with_workers(experiment, 1)) == [(7, 256, 1_000_000 // 7 * 7)]


GROUPS = {
    "dd-ppo": (DataParallel(2), PPOConfig(minibatches=1), ("worker0", "worker1")),
    "fasttd3-ddp": (SHARED, SMALL, ("worker0", "worker1")),
    "impala": (IMPALA(1, 8, learners=2), ImpalaConfig(), ("learner", "learner1")),
}


@pytest.mark.parametrize("name", GROUPS)
def test_members_of_a_group_on_one_cuda_device_are_refused_where_nccl_would_refuse_them(name, monkeypatch):
    monkeypatch.setattr(devices, "check_device", lambda device, flag: None)
    system, config, (one, two) = GROUPS[name]
    for placed in ("", f"{one}=cuda,{two}=cuda:0"):
        program = dataclasses.replace(system, devices=placed).program(config, ENV, settings("cuda:0"))
        with pytest.raises(BadInput) as caught:
            Processes().check(program)
        assert str(caught.value).startswith(f"{one} and {two} are both on cuda:0, ")
        assert f"--system.devices {one}=cuda:0,{two}=cuda:1, or fewer" in str(caught.value)
        Ray().check(program)  # where each member sees its own device as cuda:0
        Inline().check(program)
    for placed in (f"{one}=cuda:0,{two}=cuda:1", f"{one}=cpu,{two}=cpu"):
        program = dataclasses.replace(system, devices=placed).program(config, ENV, settings("cuda:0"))
        Processes().check(program)


def test_a_single_member_may_share_its_cuda_device():
    Processes().check(DataParallel(1).program(PPOConfig(minibatches=1), ENV, settings("cuda:0")))


def test_example_of_devices_for_many_workers_is_short():
    program = DataParallel(64).program(PPOConfig(minibatches=1), ENV, settings("cuda:0"))
    with pytest.raises(BadInput, match=r"worker6=cuda:6,worker7=cuda:7,\.\.\., or fewer"):
        Processes().check(program)
