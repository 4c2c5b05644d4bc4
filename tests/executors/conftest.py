"""A Ray cluster for all tests that want one: a head and a second node, of which "slot" stands for a GPU."""

import os
import sys

import pytest
from shards import write_inputs


@pytest.fixture(scope="session")
def ray_cluster():
    """A `ray.cluster_utils.Cluster`: nodes are processes, that can be added and lost."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where nodes find what tests hand to them
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"slot": 3}, "include_dashboard": False})
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder with tiny.yaml and all that it names."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))
