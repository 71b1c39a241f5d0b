"""A run on a cluster that Ray pretends on one machine; one of its nodes is killed on the way."""

from pathlib import Path

from clustered import RunObserver, run

from troop.engines.ray.cluster import authenticate


class Killing(RunObserver):
    """Kills the second node once all roles run, and ends the run some steps after the restarts."""

    node = None

    def log(self, counters, metrics):
        """Look how far they are."""
        self.last |= metrics
        self.counters = counters
        if self.node is not None and counters.env_steps > 200:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None
        elif self.node is None and counters.restarts and self.stop_at is None:
            self.stop_at = counters.env_steps + 500


def main(folder):
    """Two nodes of five CPUs."""
    authenticate("local", insecure=False)
    import ray
    from ray.cluster_utils import Cluster

    watch = Killing(Path(folder))
    watch.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 5})
    try:
        watch.node = watch.cluster.add_node(num_cpus=5)
        ray.init(address=watch.cluster.address, log_to_driver=False)
        run(watch.cluster.address, 6.0, watch)
    finally:
        ray.shutdown()
        watch.cluster.shutdown()
