"""The Ray cluster of Flower's simulation.

If `RAY_ADDRESS` is set, Ray uses the cluster at this address. Otherwise Ray starts a cluster on
this machine.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError
from samara.shared.machine.installed_code import samara_version
from samara.shared.settings.blobs import blob_settings
from samara.shared.settings.config import RunConfig
from samara.shared.storage.blob_store import BlobStore, parse_reference

ADDRESS_VARIABLE = "RAY_ADDRESS"
Node = Mapping[str, Any]
"""A node as `ray.nodes()` describes it."""


def client_resources(config: RunConfig) -> dict[str, float]:
    """Return the resources that a client holds while it works, in the form of Flower's engine.

    A client on CUDA holds one GPU. Ray makes no other GPU visible to the client's process.

    Args:
        config: settings of a client.

    Raises:
        SamaraError: if the torch device names one of several GPUs.
    """
    name = config.model.torch_device
    kind, _, number = name.partition(":")
    if kind == "cuda" and number.strip("0"):
        raise SamaraError(
            f"model.torch-device = {name}: Ray gives each client a separate GPU and hides all "
            "other GPUs; set model.torch-device to cuda"
        )
    return {"num_cpus": float(config.threads), "num_gpus": float(kind == "cuda")}


def clients_at_once(nodes: Iterable[Node], resources: Mapping[str, float]) -> int:
    """Return the number of clients that can run at the same time, each with room on one node.

    Args:
        nodes: nodes of the cluster.
        resources: resources of a client.
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    wanted = {names[name]: count for name, count in resources.items() if count}
    return sum(
        min(int(node["Resources"].get(name, 0.0) // count) for name, count in wanted.items())
        for node in nodes
        if node["Alive"]
    )


def check_room(nodes: Sequence[Node], resources: Mapping[str, float]) -> None:
    """Check that a client fits on a node.

    Raises:
        SamaraError: if no node has room.
    """
    if clients_at_once(nodes, resources):
        return
    found = ", ".join(
        f"{node_name(node)} has {node['Resources'].get('CPU', 0):g} CPUs and "
        f"{node['Resources'].get('GPU', 0):g} GPUs"
        for node in nodes
        if node["Alive"]
    )
    raise SamaraError(
        f"no node of the Ray cluster has room for a client, which needs "
        f"{resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs ({found}); lower "
        "threads, set model.torch-device to cpu, or start ray with more --num-cpus or --num-gpus"
    )


def needed_paths(config: RunConfig, folder: Path) -> list[str]:
    """Return the files and folders that every node needs at the same path.

    These are the command's working directory and the paths in the settings. The run's folder is
    also needed if clients write files to it (private rounds, or counts of sent scalars).

    Args:
        config: settings of the run, with hashes in place of blobs.
        folder: folder of the run.
    """
    named = (config.model.path, config.data.path, config.task)
    needed = [Path.cwd(), *(Path(name).absolute() for name in named if Path(name).exists())]
    references = [parse_reference(value) for value in blob_settings(config).values()]
    needed += [path for blob in references if blob and (path := BlobStore().find(blob))]
    if config.personal.rounds or config.data.scalar_limit or config.data.epsilon_limit:
        needed.append(folder.absolute())
    return sorted({str(path) for path in needed})


def connect() -> None:
    """Start Ray on this machine, or connect to the cluster at `RAY_ADDRESS`.

    Processes that Ray starts use the module path of this process.

    Raises:
        SamaraError: if there is no cluster at `RAY_ADDRESS`, or if the cluster runs another version
            of Ray or Python.
    """
    import ray

    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    try:
        ray.init(
            runtime_env={"env_vars": {"PYTHONPATH": path}},
            include_dashboard=False,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        address = os.environ.get(ADDRESS_VARIABLE, "")
        where = f"{ADDRESS_VARIABLE} = {address}: " if address else ""
        raise SamaraError(
            f"{where}Ray cannot be used: {reason}; see `ray status`, or unset {ADDRESS_VARIABLE} "
            "to simulate on this machine"
        ) from error


def check_nodes(nodes: Iterable[Node], needed: Sequence[str]) -> None:
    """Check that every node has the paths that clients read, and this version of Samara.

    Args:
        nodes: nodes of the cluster.
        needed: paths of files and folders.

    Raises:
        SamaraError: if a node lacks a path, or has another version of Samara.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def missing() -> tuple[str, list[str]]:
        from pathlib import Path  # a late import, because the function runs on another machine

        from samara.shared.machine.installed_code import samara_version

        return samara_version(), [path for path in needed if not Path(path).exists()]

    here = samara_version()
    for node in nodes:
        if not node["Alive"] or not node["Resources"].get("CPU"):
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        address = node_name(node)
        try:
            found, lacks = ray.get(
                ray.remote(missing).options(num_cpus=0, scheduling_strategy=there).remote()
            )
        except RayError as error:
            raise SamaraError(
                f"node {address} of the Ray cluster cannot run Samara: "
                f"{str(error).strip().splitlines()[-1]}; install this machine's version of "
                "samara-fl[ray] on that node"
            ) from error
        if lacks:
            raise SamaraError(
                f"node {address} of the Ray cluster lacks {lacks[0]}; every node needs this "
                "machine's files at the same paths, for example on a network drive"
            )
        if found != here:
            raise SamaraError(
                f"node {address} of the Ray cluster has samara-fl {found}, but this machine has "
                f"{here}; install one version on both"
            )


def node_name(node: Node) -> str:
    """Return the address of a node."""
    return str(node["NodeManagerAddress"])
