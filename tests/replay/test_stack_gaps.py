"""Every sampled frame stack is an observation of the env, also after resumes and lost rows."""

import copy

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep, Rollout
from troop.core.env import Discrete, EnvSpec, Field
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.uniform import ReplaySize, UniformReplay

STACK, N = 4, 2
SPEC = EnvSpec("frames", {"obs": Field((STACK, 1), torch.int32, STACK)}, Discrete(3), 1)


class TimedEnv:
    """An env whose frame at time t is [t], and all rows that a replay of it has received.

    `rows` holds (stack, whether a window may start, whether the row before it is in another segment).
    """

    def __init__(self):
        self.time, self.stack, self.rows, self.new_segment = 0, None, [], True

    def step(self, new_episode=False):
        self.time += 1
        if self.stack is None or new_episode:
            self.stack = (self.time,) * STACK
        else:
            self.stack = (*self.stack[1:], self.time)

    def rollout(self, rows):
        stacks, closing = [], []
        for kind in rows:
            self.step(new_episode=kind == "new")
            stacks.append(self.stack)
            closing.append(kind == "closing")
            self.rows.append((self.stack, kind != "closing", self.new_segment))
            self.new_segment = False
        obs = torch.tensor(stacks, dtype=torch.int32).view(len(rows), 1, STACK, 1)
        zeros = torch.zeros(len(rows), 1)
        false = zeros.bool()
        closing = torch.tensor(closing).view(-1, 1)
        return Rollout(torch.tensor([0]), {"obs": obs}, zeros.long(), zeros, false, false, closing)

    def end_stream(self):
        self.new_segment = True
        if self.rows:
            self.rows[-1] = (self.rows[-1][0], False, self.rows[-1][2])

    def rebuilt(self, index):
        """Return the stack of a row as the rows of its segment give it; None if they are too few."""
        frames = []
        while len(frames) < STACK:
            if index < 0:
                return None
            stack, _, new_segment = self.rows[index]
            frames.insert(0, stack[-1])
            if len(set(stack)) == 1:
                return (stack[-1],) * (STACK - len(frames)) + tuple(frames)
            index = -1 if new_segment else index - 1
        return tuple(frames)

    def starts(self, stored):
        """Return (rows where windows must be able to start, rows where they may), by their newest frame."""
        oldest = len(self.rows) - stored
        possible = [
            i
            for i in range(oldest, len(self.rows) - N)
            if self.rows[i][1] and self.rebuilt(i) == self.rows[i][0]
        ]
        return {self.rows[i][0][-1] for i in possible if i >= oldest + STACK - 1}, {
            self.rows[i][0][-1] for i in possible
        }


def make_replay(prioritized, length):
    size = ReplaySize(length, 1)
    if prioritized:
        return PrioritizedReplay(SPEC, NStep(N, 0.9), size, 0, priority=PriorityConfig(alpha=0.6))
    return UniformReplay(SPEC, NStep(N, 0.9), size, 0)


rows = st.lists(st.sampled_from(["step"] * 6 + ["new", "closing"]), min_size=1, max_size=6)
events = st.one_of(
    st.tuples(st.just("rows"), rows),
    st.tuples(st.just("rows"), rows),
    st.tuples(st.just("end"), st.integers(0, 5)),  # the stream ends; this many steps of the env are lost
    st.tuples(st.just("restore"), st.integers(9, 24)),  # into a ring of this length
)
MID_EPISODE = [("rows", ["step"] * 6)] * 3


@settings(max_examples=200, deadline=None)
@given(st.booleans(), st.integers(9, 24), st.lists(events, min_size=2, max_size=25))
@example(False, 10, [*MID_EPISODE, ("restore", 20), ("rows", ["step"])])  # first rows of a larger ring
@example(False, 20, [*MID_EPISODE, ("restore", 10)])  # first rows of a smaller ring
@example(False, 20, [*MID_EPISODE, ("end", 5), *MID_EPISODE])  # the env continued while the replay was down
@example(True, 20, [("end", 5), *MID_EPISODE])  # an empty replay in the middle of an episode
def test_every_sampled_stack_was_an_observation(prioritized, length, drawn):
    env, replay, stored = TimedEnv(), make_replay(prioritized, length), 0
    for event, detail in drawn:
        if event == "rows":
            replay.add(env.rollout(detail))
            stored = min(stored + len(detail), length)
        elif event == "end":
            env.end_stream()
            replay.end_streams()
            for _ in range(detail):
                env.step()
        else:
            state, length = copy.deepcopy(replay.state_dict()), detail
            replay = make_replay(prioritized, length)
            stored = min(stored, length)
            assert replay.load_state_dict(state) >= 0 and len(replay) == stored
        batch = replay.sample(600)
        if batch is None:
            assert not env.starts(stored)[0]
            continue
        stacks = {stack for stack, _, _ in env.rows}
        sampled = [tuple(x) for x in batch.obs["obs"].flatten(1).tolist()]
        assert set(sampled) <= stacks
        assert {tuple(x) for x in batch.next_obs["obs"].flatten(1).tolist()} <= stacks
        required, allowed = env.starts(stored)
        assert required <= {stack[-1] for stack in sampled} <= allowed


def test_resumed_replay_marks_the_same_rows():
    env, one = TimedEnv(), make_replay(False, 20)
    env.step()
    one.add(env.rollout(["step"] * 2))  # the last row without a complete stack follows after the resume
    two = make_replay(False, 20)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    rollout = env.rollout(["step"] * 6)
    for replay in (one, two):
        replay.add(rollout)
        assert replay.storage.flags[:8].tolist() == [4, 4, 4, 0, 0, 0, 0, 0]
