"""Ray's own multi-node test cluster on the loopback, in a process of its own: `python -m …faults.nodes NODES`.

Prints its address and the process ids of its raylets, the head's first. Each line that it reads is the number of a node
to remove, with no time for it to end well; it answers with the number. It ends with its input. Each node unpacks what
a driver sends in a folder of its own, which Ray clears before.
"""

import sys

from fedsim.simulation.ray_cluster import quiet_environment


def serve(nodes: int) -> None:
    quiet_environment()
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    here = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    started = [cluster.add_node(**here, runtime_env_dir_name=f"node-{one}") for one in range(nodes)]
    raylets = [node.all_processes["raylet"][0].process.pid for node in started]
    try:
        print(cluster.address, *raylets, flush=True)
        for line in sys.stdin:
            number = int(line)
            cluster.remove_node(started[number], allow_graceful=False)
            print(number, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
