import pytest

from troop.core.program import Build, Node, Program, Ref, build, construct, derive_seed
from troop.engines.host import Host


class Peer:
    """Holds whatever it is given."""

    def __init__(self, *held, **named):
        self.held, self.named = held, named


def test_a_node_may_hold_only_earlier_nodes():
    program = Program("p")
    with pytest.raises(ValueError, match=r"'a' holds 'b', which is not an earlier node"):
        program.add("a", Peer, Ref("b"))
    with pytest.raises(ValueError, match="'a' holds 'a'"):
        program.add("a", Peer, Ref("a"))
    assert program.nodes == {}


@pytest.mark.parametrize(
    "hide", [lambda r: [r], lambda r: (1, r), lambda r: {"x": r}, lambda r: build(Peer, [r])]
)
def test_references_are_found_and_filled_in_wherever_they_hide(hide):
    with pytest.raises(ValueError, match="not an earlier node"):
        Program("p").add("late", Peer, hide(Ref("nobody")))
    program = Program("p")
    program.add("late", Peer, hide(program.add("early", Peer)))
    host = Host(program, 0)

    def unwrapped(x):
        if isinstance(x, Peer) and x.held:
            return unwrapped(x.held[0])
        return (
            unwrapped(x["x"] if isinstance(x, dict) else x[-1]) if isinstance(x, list | tuple | dict) else x
        )

    assert unwrapped(host.roles["late"].held[0]) is host.roles["early"]


def test_two_nodes_of_one_name_are_refused():
    program = Program("p")
    program.add("a", Peer)
    with pytest.raises(ValueError, match="two nodes are named 'a'"):
        program.add("a", Peer)


def test_a_host_refuses_references_that_nobody_answers():
    program = Program("p", {"a": Node("a", Build(Peer, (Ref("ghost"),), {}))})
    with pytest.raises(KeyError, match="ghost"):
        Host(program, 0)


def test_nested_builds_are_made_inside_out_and_once_each():
    made = construct(build(Peer, build(Peer, 1), x=build(Peer, 2)), {}.__getitem__)
    assert made.held[0].held == (1,) and made.named["x"].held == (2,)


def test_seeds_depend_on_seed_and_name_and_nothing_else():
    assert derive_seed(1, "a") == 0x72413F16  # CRC-32 of "1/a" without its top bit, on every machine
    assert len({derive_seed(seed, name) for seed in range(50) for name in "abc"}) == 150


def names(program):
    return {host: [node.name for node in nodes] for host, nodes in program.hosts().items()}


def test_each_node_has_a_host_of_its_own_unless_it_is_put_with_others():
    program = Program("p")
    server = program.add("server", Peer)
    with program.host("bundle"):
        replay = program.add("replay", Peer)
        program.add("learner", Peer, replay, server)
    program.add("actor", Peer, [replay])
    assert names(program) == {"server": ["server"], "bundle": ["replay", "learner"], "actor": ["actor"]}


def test_hosts_come_in_calling_order_whatever_the_order_of_nodes():
    program = Program("p")
    with program.host("late"):
        program.add("first", Peer)
    store = program.add("store", Peer)
    with program.host("late"):
        program.add("last", Peer, store)
    assert list(names(program)) == ["store", "late"]


def test_hosts_that_would_wait_for_each_other_are_refused():
    program = Program("p")
    with program.host("a"):
        one = program.add("one", Peer)
    with program.host("b"):
        two = program.add("two", Peer, one)
    with program.host("a"):
        program.add("three", Peer, two)
    with pytest.raises(ValueError, match=r"in a circle: .*a.* -> .*b"):
        program.hosts()


def test_a_failure_inside_a_host_block_does_not_leave_it_open():
    program = Program("p")
    with pytest.raises(ValueError, match="not an earlier node"), program.host("h"):
        program.add("a", Peer, Ref("nobody"))
    program.add("b", Peer)
    assert names(program) == {"b": ["b"]}


def test_threads_are_placed_by_name():
    program = Program("p")
    program.add("learner", Peer)
    program.place("learner", threads=3)
    assert program.nodes["learner"].threads == 3
