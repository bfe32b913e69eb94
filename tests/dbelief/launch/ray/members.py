"""Members of jobs on a Ray cluster, as the system and Ray list them."""

from __future__ import annotations

import subprocess


def members(address: str) -> dict[int, str]:
    """Programs that run of the members of a job, by its coordinator's address: command lines by process id."""
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 1) for line in listed.splitlines() if f"--coordinator {address}" in line]
    return {int(pid): command for pid, command in rows if not command.startswith("sh ")}


def names() -> list[str]:
    """Of all named actors that are not dead."""
    import ray

    return sorted(one["name"] for one in ray.util.list_named_actors(all_namespaces=True))
