"""The systems that are compared: their packages, how each is started, and what is killed of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.deployment import registry_command
from benchmarks.harness import options, runs
from benchmarks.harness.environments import TORCH
from benchmarks.peers.place import Place

FOLDER = Path(__file__).parent
TRAINERS = FOLDER / "trainers"
JOB = FOLDER / "job.yaml"
NUMPY = "numpy==2.4.6"
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "torch": (TORCH, NUMPY, "torchft==0.2.0"),
    "ray": (TORCH, NUMPY, "ray[train]==2.49.2"),
    "hivemind": (TORCH, NUMPY, "hivemind==1.1.12"),
    "flower": (TORCH, NUMPY, "flwr==1.42.0"),
}
"""By name; systems whose pins agree share one."""
CHECKPOINT_S, CHECKPOINT_STEPS = 1.0, 250
"""Between checkpoints, also dbelief's snapshots; Ray Train, whose workers meet for one, makes one in so many steps."""


ROLES = ("worker", "server", "coordinator")
"""What is killed."""


@dataclass(frozen=True)
class System:
    """One system.

    Attributes
    ----------
    start
        Starts its processes.
    files
        What a user writes, below this folder.
    environment
        "": dbelief's own.
    kills
        By role: the process, by its name of the supervisor or in the reports.
    linked
        Whether it runs on several hosts.
    trainers
        Workers where they are fewer than asked for.
    round_s
        Least length of a phase, where it trains in bursts.
    grace_s
        After a kill; what was begun before it ends in this time.
    """

    name: str
    start: Callable[[Place], None]
    files: tuple[str, ...]
    environment: str = "torch"
    kills: Mapping[str, str] = field(default_factory=dict)
    linked: bool = True
    trainers: int | None = None
    round_s: float = 0.0
    grace_s: float = 1.5

    @property
    def ours(self) -> bool:
        """Whether it is dbelief."""
        return not self.environment


# -- torch -----------------------------------------------------------------------------------------------------


def alone(place: Place) -> None:
    """One process."""
    place.start("worker-0", place.trainer("alone"))


def _rank(place: Place, rank: int, world: int) -> dict[str, str]:
    meeting = {"MASTER_ADDR": place.address(1), "MASTER_PORT": str(place.port("meeting"))}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), **meeting}


def ddp(place: Place) -> None:
    """A process for each rank; the first has the store."""
    for rank in range(place.workers):
        place.start(f"worker-{rank}", place.trainer("ddp"), 1 + rank, variables=_rank(place, rank, place.workers))


def elastic(place: Place) -> None:
    """One launcher, or one for each host."""
    launch = [str(place.python), "-m", "torch.distributed.run", "--max-restarts", "1000"]
    train = ["--no-python", *place.trainer("elastic")]
    # In the store that torch shares by default, ranks of a restart find their predecessors' addresses, and fail.
    more, variables = {"checkpoint_s": CHECKPOINT_S}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if not place.linked:
        words = ["--standalone", "--nproc-per-node", str(place.workers)]
        place.start("launcher", [*launch, *words, *train], more=more, variables=variables)
        return
    meeting = f"{place.address(1)}:{place.port('meeting')}"
    for rank in range(place.workers):
        words = [
            "--nnodes",
            str(place.workers),
            "--nproc-per-node",
            "1",
            "--rdzv-id",
            "peers",
            "--rdzv-backend",
            "c10d",
        ]
        # The launcher compares the address with those of the host's name, which network namespaces share.
        words += ["--rdzv-endpoint", meeting, "--rdzv-conf", f"is_host={int(rank == 0)}"]
        words += ["--local-addr", place.address(1 + rank)]
        place.start(f"launcher-{rank}", [*launch, *words, *train], 1 + rank, more=more, variables=variables)


def rpc(place: Place) -> None:
    """The server, which has the store, and the workers."""
    world = place.workers + 1
    more = {"rpc": {"_transports": ["uv"], "_channels": ["basic"]} if place.linked else {}}  # no memory past the link
    for rank in range(world):
        meeting = {**_rank(place, rank, world), "MASTER_ADDR": place.address(0)}
        place.start(
            f"worker-{rank - 1}" if rank else "server", place.trainer("rpc"), rank, more=more, variables=meeting
        )


def torchft(place: Place) -> None:
    """A lighthouse, and replica groups of one process."""
    port = place.port("lighthouse")
    waits = ["--min_replicas", "1", "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000"]
    place.start("lighthouse", [place.program("torchft_lighthouse"), "--bind", f"{place.address(0)}:{port}", *waits])
    lighthouse = f"http://{place.address(0)}:{port}"
    for rank in range(place.workers):
        named = {"REPLICA_GROUP_ID": str(rank), "TORCHFT_LIGHTHOUSE": lighthouse}
        place.start(f"worker-{rank}", place.trainer("ft"), 1 + rank, variables=named)


# -- Ray, hivemind, Flower -------------------------------------------------------------------------------------

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_DEDUP_LOGS": "0",
}
STORE_BYTES = 256 << 20
STARTED, HEAD_S = "Ray runtime started", 60.0
"""What a head prints, and the bound of the wait for it."""


def ray(trainer: str) -> Callable[[Place], None]:
    """A driver that starts Ray; on several hosts a head, and a node for each worker."""

    def start(place: Place) -> None:
        settings: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": place.address(0)}
        # It replaces the loopback's address with this machine's, and refuses several nodes without it.
        variables = {**RAY, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(place.linked))}
        if place.linked:
            head = f"{place.address(0)}:{place.port('head')}"
            settings = {"address": head, "_node_ip_address": place.address(0)}
            ray = [place.program("ray"), "start", "--block", "--disable-usage-stats"]
            ray += ["--object-store-memory", str(STORE_BYTES)]
            ip = "--node-ip-address"
            words = ["--head", ip, place.address(0), "--port", str(place.port("head")), "--num-cpus", "0"]
            words += ["--include-dashboard", "false", "--resources", json.dumps({"server": 1})]
            place.start("head", [*ray, *words], variables=variables)
            # A head refuses to start beside nodes of the same address, which it finds among the machine's processes.
            runs.wait_for(lambda: STARTED in (place.folder / "head.log").read_text() or None, "Ray's head", HEAD_S)
            for rank in range(place.workers):
                words = ["--address", head, ip, place.address(1 + rank), "--num-cpus", "1"]
                words += ["--resources", json.dumps({"worker": 1})]
                place.start(f"node-{rank}", [*ray, *words], 1 + rank, variables=variables)
        else:
            settings |= {"num_cpus": place.workers + 1, "object_store_memory": STORE_BYTES}
        more = {"ray": settings, "nodes": place.linked, "checkpoint_steps": CHECKPOINT_STEPS}
        place.start("driver", place.trainer(trainer), more=more, variables=variables)

    return start


def hivemind(place: Place) -> None:
    """The first peer of the DHT, and the peers that train."""
    listen = f"/ip4/{place.address(0)}/tcp/{place.port('dht')}"
    words = ["--host_maddrs", listen, "--identity_path", str(place.folder / "identity"), "--no_relay"]
    place.start("dht", [place.program("hivemind-dht"), *words])
    for rank in range(place.workers):
        place.start(f"worker-{rank}", place.trainer("hive"), 1 + rank, variables={"RANK": str(rank)})


def flower(place: Place) -> None:
    """A SuperLink, which starts the server, SuperNodes, which start the clients, and the command that starts a run."""
    app, home = place.folder / "app", place.folder / "home"
    shutil.copytree(TRAINERS / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    port = str(place.port("superlink"))
    link = f"{place.address(0)}:{port}"
    settings = f'[superlink]\ndefault = "peers"\n\n[superlink.peers]\naddress = "{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(settings)
    path = f"{place.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    words = ["--insecure", "--host", place.address(0), "--port", port, "--disable-runtime-dependency-installation"]
    place.start("superlink", [place.program("flower-superlink"), *words], variables=variables)
    for rank in range(place.workers):
        words = ["--insecure", "--superlink", link, "--port", str(place.port(f"node-{rank}"))]
        words += ["--node-config", f"partition-id={rank} num-partitions={place.workers}"]
        place.start(f"worker-{rank}", [place.program("flower-supernode"), *words], 1 + rank, variables=variables)
    place.start("run", [place.program("flwr"), "run", str(app), "peers"], ends=True, variables=variables)


# -- dbelief ---------------------------------------------------------------------------------------------------

DILOCO = "{name: diloco, batch: 64, steps: 50, delay: 50, inner: {name: sgd, rate: 0.3}}"


def dbelief(copies: int = 1, strategy: str = "") -> Callable[[Place], None]:
    """A registry, a coordinator, a shard in so many copies, and workers."""

    def start(place: Place) -> None:
        registry = place.port("registry")
        place.start("registry", registry_command(place.folder / "registry", registry))
        listen = f"{place.address(0)}:{place.port('coordinator')}"
        fields: dict[str, object] = {"output": place.folder, "replicas": place.workers, "replication": copies}
        fields |= {
            "seed": place.given["seed"],
            "snapshots.every_s": CHECKPOINT_S,
            "strategy.batch": place.given["batch"],
        }
        fields |= {"strategy": strategy} if strategy else {"strategy.rule.rate": place.given["rate"]}
        words = ["coordinator", str(JOB), *options.settings(fields), "--listen", listen, "--no-pictures", "--once"]
        own = {} if not place.linked else {"DBELIEF_INSECURE": "1"}
        words += ["--registry", f"redis://127.0.0.1:{registry}"]
        place.start("coordinator", [*runs.COMMAND, *words, "--name", "coordinator"], ends=True, variables=own)
        for number in range(copies):
            ps = [*runs.COMMAND, "ps", "--coordinator", listen, "--name", f"server-{number}"]
            place.start(f"server-{number}", [*ps, "--listen", f"{place.address(0)}:0"], variables=own)
        for rank in range(place.workers):
            worker = [
                *runs.COMMAND,
                "worker",
                "--coordinator",
                listen,
                "--name",
                f"worker-{rank}",
                "--number",
                str(rank),
            ]
            # Namespaces of one machine have one file system, and could share memory past the link.
            worker += ["--no-shared-memory"] if place.linked else []
            worker += ["--metrics", f"127.0.0.1:{place.port(f'metrics-{rank}')}"]
            slow = rank == place.given["slow"]
            wait = {"DBELIEF_COMPUTE_WAIT": str(place.given["slow_s"])} if slow else {}
            place.start(f"worker-{rank}", worker, 1 + rank, variables={**own, **wait})

    return start


OURS = {"worker": "worker-1", "server": "server-0", "coordinator": "coordinator"}
SYSTEMS = (
    System("torch", alone, ("trainers/alone.py",), kills={"worker": "worker-0"}, linked=False, trainers=1),
    System("torch DDP", ddp, ("trainers/ddp.py",), kills={"worker": "worker-1", "server": "worker-0"}),
    System("torchrun", elastic, ("trainers/elastic.py",), kills={"worker": "worker-1", "coordinator": "launcher"}),
    System("torch RPC", rpc, ("trainers/rpc.py",), kills={"worker": "worker-1", "server": "server"}),
    System("torchft", torchft, ("trainers/ft.py",), kills={"worker": "worker-1", "coordinator": "lighthouse"}),
    System(
        "Ray actors",
        ray("ray_server"),
        ("trainers/ray_server.py",),
        "ray",
        {"worker": "worker-1", "server": "server", "coordinator": "driver"},
    ),
    System(
        "Ray Train",
        ray("ray_train"),
        ("trainers/ray_train.py",),
        "ray",
        {"worker": "worker-1", "coordinator": "driver"},
    ),
    System(
        "hivemind",
        hivemind,
        ("trainers/hive.py",),
        "hivemind",
        {"worker": "worker-1", "coordinator": "dht"},
        round_s=8.0,
    ),
    System(
        "Flower",
        flower,
        tuple(
            f"trainers/flower_app/{name}" for name in ("peers_app/client.py", "peers_app/server.py", "pyproject.toml")
        ),
        "flower",
        {"worker": "worker-1", "server": "server", "coordinator": "superlink"},
        round_s=20.0,
        grace_s=20.0,
    ),
    System("dbelief", dbelief(), ("job.yaml",), "", OURS),
    System("dbelief, 2 copies", dbelief(2), ("job.yaml",), "", OURS),
    System("dbelief, diloco", dbelief(1, DILOCO), ("job.yaml",), "", OURS),
)
"""What is killed as "server" holds parameters, or the store by which ranks meet."""
