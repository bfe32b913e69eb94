"""A pod of one container as a process of this host: volumes are folders, Services are ports of loopback."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Thing = dict[str, Any]
Find = Callable[[str, str], Thing]
"""An object by kind and name."""

PROGRAM = [sys.executable, "-P", "-m", "dbelief"]


def a_port() -> int:
    """A free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class PodProcess:
    """A pod that runs.

    Parameters
    ----------
    folder
        Of the pod; claims are folders beside it.
    find
        Reads ConfigMaps and Secrets.
    at
        Ports of loopback of Services, by `name:port`.
    """

    def __init__(self, name: str, pod: Thing, folder: Path, claims: Path, find: Find, at: Mapping[str, int]) -> None:
        self.name, self.pod = name, pod
        (self._container,) = pod["spec"]["containers"]
        self._folder, self.log = folder, folder / "log"
        self.ports = {port["containerPort"]: a_port() for port in self._container.get("ports", ())}
        folder.mkdir(parents=True)
        self._places = self._mounted(claims, find)
        self._at = at
        self.restarts = -1
        self.code: int | None = None
        self._probe: subprocess.Popen[bytes] | None = None
        self._probed_s = 0.0
        self.ready = False
        self.start()

    def start(self) -> None:
        """Start the container, or start it again."""
        self.restarts += 1
        self.code = None
        environment = {**os.environ, **self._environment()}
        words = [self._here(word) for word in self._container["args"]]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, *words], env=environment, cwd=self._folder / "srv", stdout=log, stderr=log, process_group=0
            )

    def look(self) -> None:
        """See whether the container has ended, and, every second, whether it is ready."""
        self.code = self.process.poll()
        probe = self._container.get("readinessProbe")
        # Only a Service of coordinators chooses by it, and each probe is a process.
        if self.code is not None or probe is None or self._container["name"] != "coordinator":
            self.ready = self.code is None
            return
        if self._probe is None and time.monotonic() - self._probed_s > (3.0 if self.ready else 1.0):
            command = [*PROGRAM, *probe["exec"]["command"][1:]]
            environment = {**os.environ, **self._environment()}
            quiet = subprocess.DEVNULL
            self._probe = subprocess.Popen(command, env=environment, cwd=self._folder, stdout=quiet, stderr=quiet)
        if self._probe is not None and self._probe.poll() is not None:
            self.ready, self._probe, self._probed_s = self._probe.returncode == 0, None, time.monotonic()

    def terminate(self) -> None:
        """Send SIGTERM, as kubelet does before it removes a pod."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its probe at once."""
        for process in filter(None, (self.process, self._probe)):
            if process.poll() is None:
                process.kill()
            process.wait()

    def status(self) -> Thing:
        """The pod's status, as the API has it."""
        state: Thing = {"running": {}}
        phase = "Running"
        if self.code is not None:
            state = {"terminated": {"exitCode": self.code if self.code >= 0 else 128 - self.code}}
            phase = "Succeeded" if self.code == 0 else "Failed"
        container = {"name": self._container["name"], "state": state, "restartCount": self.restarts}
        ready = {"type": "Ready", "status": "True" if self.ready and self.code is None else "False"}
        return {"phase": phase, "conditions": [ready], "containerStatuses": [container]}

    def _mounted(self, claims: Path, find: Find) -> dict[str, Path]:
        """Folders of this host by path of the container."""
        volumes = {volume["name"]: volume for volume in self.pod["spec"].get("volumes", ())}
        places = {}
        (self._folder / "srv").mkdir()
        for mount in self._container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if "persistentVolumeClaim" in volume:
                place = claims / volume["persistentVolumeClaim"]["claimName"]
            else:
                place = self._folder / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                for name, text in find("configmaps", volume["configMap"]["name"])["data"].items():
                    (place / name).write_text(text)
            if "secret" in volume:
                for name, data in find("secrets", volume["secret"]["secretName"])["data"].items():
                    (place / name).write_bytes(base64.b64decode(data))
            places[mount["mountPath"]] = place
        if "/srv/runs" in places:
            (self._folder / "srv" / "runs").symlink_to(places["/srv/runs"])
        return places

    def _environment(self) -> dict[str, str]:
        given = {}
        for entry in self._container.get("env", ()):
            if "value" in entry:
                given[entry["name"]] = self._here(entry["value"])
            else:
                path = entry["valueFrom"]["fieldRef"]["fieldPath"]
                key = path.partition("['")[2].rstrip("']")
                fields = {**self.pod["metadata"]["labels"], **self._annotations()}
                given[entry["name"]] = self.name if path == "metadata.name" else fields[key]
        self._given = given
        return given

    def _annotations(self) -> dict[str, str]:
        return dict(self.pod["metadata"].get("annotations", {}))

    def _here(self, text: str) -> str:
        """A word of the command line, or a variable, as it is on this host."""
        for name, value in getattr(self, "_given", {}).items():
            text = text.replace(f"$({name})", value)
        for service, port in self._at.items():
            text = text.replace(service, f"localhost:{port}")
        for own, port in self.ports.items():
            text = text.replace(f"0.0.0.0:{own}", f"127.0.0.1:{port}")
        for path, place in sorted(self._places.items(), key=lambda item: -len(item[0])):
            if text == path or text.startswith(f"{path}/"):
                return f"{place}{text[len(path) :]}"
        return text
