"""Every invalid command line is reported in one sentence with exit code 2."""

import pytest
import torch

from troop.api import make_experiment
from troop.cli.main import run

INVALID = [
    (["trian"], "'train'"),
    (["train", "sac", "--env", "a\nb\x1b"], "Unknown env 'a\\nb\\x1b'"),
    (["train", "fasttdd3"], "'fasttd3'"),
    (["train", "--minutes", "1"], "recipe"),
    (["train", "fasttd3", "--env", "WalkrWalk-v1"], "'WalkerWalk-v1'"),
    (["train", "fasttd3", "--env", "nowhere.at_all:Env-v0"], "nowhere"),
    (["train", "fasttd3", "--env"], "--env needs a value"),
    (["train", "fasttd3", "--gama", "0.9"], "did you mean --gamma?"),
    (["train", "fasttd3", "--threads", "2"], "use --env.threads or --engine.threads."),
    (["train", "fasttd3", "--algorithm.gama", "0.9"], "--algorithm.gamma"),
    (["train", "fasttd3", "--gamma", "1.5"], "--algorithm.gamma is 1.5"),
    (["train", "fasttd3", "--algorithm.gamma", "high"], "--gamma"),
    (["train", "fasttd3", "--batch-size"], "--batch-size"),
    (["train", "fasttd3", "--overlap", "False"], "False"),
    (["train", "fasttd3", "--algorithm.gamma", "nan"], "--algorithm.gamma is nan"),
    (["train", "fasttd3", "--algorithm.actor-hidden", "64", "0"], "--algorithm.actor-hidden is 0"),
    (["train", "fasttd3", "--batch-size", "0"], "--system.schedule.batch-size is 0"),
    (["train", "fasttd3", "--system.replay-capacity", "100"], "--system.replay-capacity is 100"),
    (["train", "fasttd3", "--minutes", "-1"], "--minutes is -1"),
    (["train", "fasttd3", "--env-steps", "0"], "--env-steps is 0"),
    (["train", "fasttd3", "--seed", "-3"], "--seed is -3"),
    (["train", "fasttd3", "--envs", "many"], "--envs is 'many'"),
    (["train", "fasttd3", "--envs", "0"], "--envs is 0"),
    (["train", "fasttd3", "--engine", "warp"], "--engine is 'warp'"),
    (["train", "fasttd3", "--device", "cuda:77"], "--device is 'cuda:77'"),
    (["train", "fasttd3", "--device", "toaster"], "--device is 'toaster'"),
    (["train", "fasttd3", "--algorithm.v-min", "5", "--algorithm.v-max", "5"], "range of values"),
    (["train", "fasttd3", "--env", "CartPole-v1", "--minutes", "1"], "discrete actions"),
    (["train", "rainbow", "--env", "Pendulum-v1", "--minutes", "1"], "continuous actions"),
    (["train", "rainbow", "--system.priority.alpha", "-1"], "--system.priority.alpha is -1"),
    (["train", "per-dqn", "--system.priority.beta", "1.5"], "--system.priority.beta is 1.5"),
    (["train", "per-dqn", "--system.priority.eps", "0"], "--system.priority.eps is 0"),
    (["train", "dqn", "--algorithm.n-step", "0"], "--algorithm.n-step is 0"),
    (["train", "dqn", "--system.replay-capacity", "0"], "--system.replay-capacity is 0"),
    (["train", "dqn", "--env", "Catch-v0", "--algorithm.net", "nature", "--minutes", "1"], "10x5"),
    (
        ["train", "c51", "--algorithm.v-min", "9", "--algorithm.v-max", "2", "--minutes", "1"],
        "range of values",
    ),
    (
        ["train", "ppo", "--envs", "6", "--minibatches", "7"],
        "384 rows of a batch of 64 steps of 6 env streams; 4, 6, 8",
    ),
    (
        ["train", "ppo", "--rollout-length", "7", "--minibatches", "5"],
        "896 rows of a batch of 7 steps of 128 env streams; 2, 4, 7",
    ),
    (["train", "ppo-lstm", "--envs", "6", "--minibatches", "4"], "the 6 env streams of a batch of 64 steps"),
    (
        ["train", "a3c", "--envs", "3", "--minibatches", "4"],
        "15 rows of a batch of 5 steps of 3 env streams; 1, 3, 5",
    ),
    (["train", "appo", "--batch-size", "9"], "the 9 env streams of a batch of 32 steps"),
    (["train", "ppo", "--anneal-steps", "1000"], "both set the learning rate"),
    (["train", "apex-dqn", "--system.devices", "lerner=cpu"], "'lerner'; did you mean 'learner'?"),
    (["train", "apex-dqn", "--system.devices", "learner"], "--system.devices is 'learner'; it must"),
    (["train", "apex-dqn", "--system.devices", "actor=cpu,actor=cpu"], "each role at most once"),
    (["train", "apex-dqn", "--system.devices", "actor1=cuda:77"], "for actor1 is 'cuda:77'"),
    (["train", "gorila-dqn", "--system.devices", "learner0=cpu"], "'learner0'; the roles are bundle"),
    (["train", "apex-dqn", "--engine", "ray", "--engine.cpus", "lerner=2"], "no role 'lerner'"),
    (["train", "apex-dqn", "--engine", "ray", "--engine.cpus", "actor=x"], "--engine.cpus is 'actor=x'"),
    (["train", "apex-dqn", "--engine", "ray", "--engine.address", "there"], "--engine.address is 'there'"),
    (["train", "pql", "--system.beta-av", "0"], "--system.beta-av is 0.0; it must be above 0"),
    (["train", "pql", "--system.beta-pv", "-2"], "--system.beta-pv is -2.0; it must be above 0"),
    (["train", "pql", "--env", "CartPole-v1"], "discrete actions"),
    (["train", "pql", "--system.devices", "critic=cuda:77"], "--system.devices for critic is 'cuda:77'"),
    (["train", "pql", "--algorithm.target-policy"], "--algorithm.no-target-policy"),
    (["train", "pql-d", "--system.learning-starts", "2"], "--system.learning-starts is 2"),
    (["resume", "no-such-run"], "not a run directory"),
    (["eval", "no-such-run"], "not a run directory"),
    (["eval", "no-such-run", "--episodes", "0"], "--episodes is 0"),
    (["eval", "no-such-run", "--episode", "3"], "--episodes"),
    (["play", "no-such-run", "--video", "film.txt"], ".mp4"),
    (["envs", "no env is called this"], "No env matches"),
    (["bench", "everything"], "everything"),
]


@pytest.mark.parametrize(("argv", "text"), INVALID, ids=[" ".join(argv) for argv, _ in INVALID])
@pytest.mark.reliability("C1")
def test_invalid_command_is_one_sentence_that_names_the_flag(argv, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.startswith("troop: ") and len(captured.err.strip().splitlines()) == 1
    assert "Traceback" not in captured.err and captured.out == ""
    assert list(tmp_path.iterdir()) == [], "a run that does not start leaves no files"


def test_amp_is_rejected_where_bf16_would_be_emulated(capsys):
    from troop.core.devices import bf16_units

    if bf16_units("cpu"):
        pytest.skip("this CPU has bf16 units")
    assert run(["train", "fasttd3", "--amp", "--minutes", "1"]) == 2
    assert "bf16" in capsys.readouterr().err


def test_compile_is_rejected_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run(["train", "fasttd3", "--compile", "--minutes", "1"]) == 5
    assert "no-such-compiler is not installed" in capsys.readouterr().err


@pytest.mark.reliability("S5")
def test_replay_larger_than_memory_is_rejected_with_both_sizes(capsys, tmp_path):
    argv = ["train", "fasttd3", "--env", "Pendulum-v1", "--minutes", "1", "--run", str(tmp_path / "run")]
    assert run([*argv, "--system.replay-capacity", "1000000000000"]) == 5
    error = capsys.readouterr().err
    assert "GB" in error and "1,000,000,000,000 rows" in error


def test_doctor_estimates_both_replays_of_pql(capsys):
    command = ["doctor", "--recipe", "pql", "--env", "Pendulum-v1", "--replay-capacity", "1000000"]
    assert run(command) == 0
    output = capsys.readouterr().out
    assert "replay     1,000,000 rows x" in output
    assert "policy     1,000,000 observations x 12 bytes = 0.012 GB" in output


def test_doctor_estimates_the_replay_of_a_data_parallel_worker(capsys):
    assert run(["doctor", "--recipe", "fasttd3-ddp", "--env", "Pendulum-v1"]) == 0
    output, replays = capsys.readouterr().out, make_experiment("fasttd3-ddp", "Pendulum-v1").system.replays
    assert f"replay     {replays.replay_capacity:,} rows x" in output
    assert f"batch      {replays.schedule.batch_size:,} rows" in output


@pytest.mark.parametrize("recipe, env", [("seed-r2d2", "CartPole-v1"), ("sac-gru", "Pendulum-v1")])
def test_doctor_counts_all_that_is_stored_with_a_sequence(recipe, env, capsys):
    """Recurrent states and what the policy returns are more than the observations of these tasks."""
    assert run(["doctor", "--recipe", recipe, "--env", env]) == 0
    experiment = make_experiment(recipe, env)
    experience, spec = experiment.algorithm.experience, experiment.env.spec
    steps = experience.length
    bytes_of = {name: torch.Size(field.shape).numel() * 4 for name, field in spec.obs.items()}
    obs, flags = (steps + 1) * sum(bytes_of.values()), 3 * steps + 1
    rows = steps * (4 + 4 + 8 + 4)  # reward, discount, version, return of the episode
    if recipe == "seed-r2d2":
        expected = obs + flags + rows + steps * (8 + 4 + 4) + 2 * 4 * experiment.algorithm.core_size
        sequences = experiment.system.replay.capacity
    else:
        held_noise = 4 * (spec.action.size + 1)
        expected = obs + flags + rows + steps * 4 + 2 * 4 * experiment.algorithm.core_size + held_noise
        sequences = experiment.system.replay_capacity
    line = f"replay     {sequences:,} sequences x {expected:,} bytes"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["dqn", "ppo", "impala", "seed-vtrace", "dd-ppo", "a3c"])
def test_doctor_estimates_every_kind_of_system(recipe, capsys):
    command = ["doctor", "--recipe", recipe, "--env", "CartPole-v1"]
    assert run(command) == 0
    output = capsys.readouterr().out
    assert output.rstrip().splitlines()[-1].startswith("batch      ")
    experiment = make_experiment(recipe, "CartPole-v1")
    if recipe == "dqn":
        assert f"replay     {experiment.system.replay_capacity:,} rows x" in output
        return
    if recipe == "ppo":
        rows = experiment.env.envs * experiment.algorithm.experience.length
        assert f"rollouts   {rows:,} rows x" in output and f"batch      {rows:,} rows" in output
    assert "rollouts   " in output
    assert run([*command, "--replay-capacity", "5"]) == 2
    assert "has no replay" in capsys.readouterr().err
