"""Machines for tests of Ray: namespaces with an address, processes, /dev/shm and a folder of their own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = 6399
MOUNTS = (
    "mount -t tmpfs tmpfs /dev/shm && mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && ip link set lo up"
)


def why_not():
    """Why this machine cannot pretend to be several, or None."""
    if os.getuid() != 0:
        return "network namespaces want root"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "network namespaces want iproute2 and util-linux"
    name = f"tr{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if tried.returncode:
        return "network namespaces are not permitted here"
    inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    tried = subprocess.run([*inside, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "mounts in a namespace are not permitted here" if tried.returncode else None


class Machines:
    """Some machines on one bridge; all is taken down at the end, whatever happened."""

    def __init__(self, count):
        self.mark, self.count = secrets.token_hex(2), count
        self.net = f"10.{77 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self.folder = Path(tempfile.mkdtemp(prefix="tr"))
        self.running = {}

    def __enter__(self):
        try:
            self._ip("link", "add", f"tb{self.mark}", "type", "bridge")
            self._ip("addr", "add", f"{self.net}.254/24", "dev", f"tb{self.mark}")
            self._ip("link", "set", f"tb{self.mark}", "up")
            for i in range(1, self.count + 1):
                name, outer, inner = f"tn{self.mark}{i}", f"to{self.mark}{i}", f"ti{self.mark}{i}"
                self._ip("netns", "add", name)
                self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
                self._ip("link", "set", outer, "master", f"tb{self.mark}", "up")
                self._ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", inner)
                self._ip("-n", name, "link", "set", inner, "up")
            (self.folder / "token").write_text(secrets.token_hex(32))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for i in list(self.running):
            self.kill(i)
        for i in range(1, self.count + 1):
            self._ip("netns", "del", f"tn{self.mark}{i}", check=False)
        self._ip("link", "del", f"tb{self.mark}", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ip(self, *words, check=True):
        subprocess.run(["ip", *words], check=check, capture_output=True)

    def address(self, i):
        """Of machine 1, 2, ..."""
        return f"{self.net}.{i}"

    def run(self, i, script):
        """Start a machine whose first process is this shell script."""
        inside = ["ip", "netns", "exec", f"tn{self.mark}{i}", "unshare", "--mount", "--pid", "--fork"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.running[i] = subprocess.Popen(
            [*inside, "--kill-child", "--mount-proc", "sh", "-c", f"{MOUNTS} && {script}"],
            stdout=(self.folder / f"said{i}").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=clean
            | {
                "MACHINE": str(i),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(Path(__file__).parent),
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
                "RAY_USAGE_STATS_ENABLED": "0",
                "OMP_NUM_THREADS": "1",
            },
        )
        return self.running[i]

    def said(self, i):
        """All that a machine has printed."""
        return (self.folder / f"said{i}").read_text()

    def kill(self, i):
        """Pull the plug."""
        process = self.running.pop(i)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def unplug(self, i):
        """Cut the cable."""
        self._ip("link", "set", f"to{self.mark}{i}", "down")

    def head(self, driver, cpus=5):
        """Machine 1: Ray's head, then a driver as soon as there is a file called `go`."""
        wait = f"while [ ! -e {self.folder}/go ]; do sleep 0.1; done"
        start = f"ray start --head --node-ip-address={self.address(1)} --port={PORT} --num-cpus={cpus}"
        self.run(1, f"{start} --include-dashboard=false && {wait} && {sys.executable} {driver}")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.running[1].poll() is None:
            try:
                return socket.create_connection((self.address(1), PORT), timeout=1).close()
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"no head: {self.said(1)}")

    def join(self, i, cpus=5):
        """Another machine; returns once its Ray runs."""
        address = f"{self.address(1)}:{PORT}"
        self.run(
            i, f"ray start --address={address} --node-ip-address={self.address(i)} --num-cpus={cpus} --block"
        )
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in self.said(i):
            if time.monotonic() > deadline or self.running[i].poll() is not None:
                raise RuntimeError(f"machine {i} did not join: {self.said(i)}")
            time.sleep(0.1)
