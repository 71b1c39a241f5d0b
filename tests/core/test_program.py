import pytest

from troop.core.program import Build, Node, Program, Ref, build, construct, derive_seed
from troop.engines.host import Host


class Peer:
    """Keeps its arguments."""

    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


def test_node_may_reference_only_earlier_nodes():
    program = Program("p")
    with pytest.raises(ValueError, match=r"'a' references 'b', which is not an earlier node"):
        program.add("a", Peer, Ref("b"))
    with pytest.raises(ValueError, match="'a' references 'a'"):
        program.add("a", Peer, Ref("a"))
    assert program.nodes == {}


@pytest.mark.parametrize(
    "nest", [lambda r: [r], lambda r: (1, r), lambda r: {"x": r}, lambda r: build(Peer, [r])]
)
def test_nested_references_are_found_and_resolved(nest):
    with pytest.raises(ValueError, match="not an earlier node"):
        Program("p").add("late", Peer, nest(Ref("missing")))
    program = Program("p")
    program.add("late", Peer, nest(program.add("early", Peer)))
    host = Host(program, 0)

    def innermost(x):
        if isinstance(x, Peer) and x.args:
            return innermost(x.args[0])
        if isinstance(x, list | tuple | dict):
            return innermost(x["x"] if isinstance(x, dict) else x[-1])
        return x

    assert innermost(host.roles["late"].args[0]) is host.roles["early"]


def test_duplicate_node_names_are_rejected():
    program = Program("p")
    program.add("a", Peer)
    with pytest.raises(ValueError, match="two nodes are named 'a'"):
        program.add("a", Peer)


def test_host_rejects_unresolved_references():
    program = Program("p", {"a": Node("a", Build(Peer, (Ref("missing"),), {}))})
    with pytest.raises(KeyError, match="missing"):
        Host(program, 0)


def test_nested_builds_are_made_once_and_innermost_first():
    outer = construct(build(Peer, build(Peer, 1), x=build(Peer, 2)), {}.__getitem__)
    assert outer.args[0].args == (1,) and outer.kwargs["x"].args == (2,)


def test_derived_seeds_depend_only_on_seed_and_name():
    assert derive_seed(1, "a") == 0x72413F16  # CRC-32 of "1/a" without its top bit, on every machine
    assert len({derive_seed(seed, name) for seed in range(50) for name in "abc"}) == 150


def node_names(program):
    return {host: [node.name for node in nodes] for host, nodes in program.hosts().items()}


def test_each_node_has_its_own_host_unless_it_is_added_in_a_host_context():
    program = Program("p")
    server = program.add("server", Peer)
    with program.host("bundle"):
        replay = program.add("replay", Peer)
        program.add("learner", Peer, replay, server)
    program.add("actor", Peer, [replay])
    assert node_names(program) == {"server": ["server"], "bundle": ["replay", "learner"], "actor": ["actor"]}


def test_hosts_are_ordered_called_first_regardless_of_node_order():
    program = Program("p")
    with program.host("late"):
        program.add("first", Peer)
    replay = program.add("replay", Peer)
    with program.host("late"):
        program.add("last", Peer, replay)
    assert list(node_names(program)) == ["replay", "late"]


def test_hosts_that_reference_each_other_in_a_cycle_are_rejected():
    program = Program("p")
    with program.host("a"):
        one = program.add("one", Peer)
    with program.host("b"):
        two = program.add("two", Peer, one)
    with program.host("a"):
        program.add("three", Peer, two)
    with pytest.raises(ValueError, match=r"in a cycle: .*a.* -> .*b"):
        program.hosts()


def test_exception_inside_a_host_context_restores_the_previous_host():
    program = Program("p")
    with pytest.raises(ValueError, match="not an earlier node"), program.host("h"):
        program.add("a", Peer, Ref("missing"))
    program.add("b", Peer)
    assert node_names(program) == {"b": ["b"]}
