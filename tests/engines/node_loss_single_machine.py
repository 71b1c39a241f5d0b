"""A run on a cluster that Ray emulates on one machine; the run kills one of its nodes."""

from pathlib import Path

from node_loss_run import NodeLossObserver, run

from troop.engines.ray.authentication import configure_authentication


class NodeKiller(NodeLossObserver):
    """Kills the second node after 200 steps, and stops the run 500 steps after the restarts."""

    node = None

    def log(self, counters, metrics):
        self.last |= metrics
        self.counters = counters
        if self.node is not None and counters.env_steps > 200:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None
        elif self.node is None and counters.restarts and self.stop_at is None:
            self.stop_at = counters.env_steps + 500


def main(directory):
    """Run on two nodes of five CPUs each."""
    configure_authentication("local", insecure=False)
    import ray
    from ray.cluster_utils import Cluster

    observer = NodeKiller(Path(directory))
    observer.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 5})
    try:
        observer.node = observer.cluster.add_node(num_cpus=5)
        ray.init(address=observer.cluster.address, log_to_driver=False)
        run(observer.cluster.address, 6.0, observer)
    finally:
        ray.shutdown()
        observer.cluster.shutdown()
