"""Virtual machines for tests of Ray: namespaces with their own address, processes, /dev/shm and /tmp/ray."""

import json
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


def unsupported_reason():
    """Return why this machine cannot create virtual machines, or None if it can."""
    if os.getuid() != 0:
        return "network namespaces require root"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "network namespaces require iproute2 and util-linux"
    name = f"tr{secrets.token_hex(3)}"
    attempt = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if attempt.returncode:
        return "network namespaces are not permitted here"
    inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    attempt = subprocess.run([*inside, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "mounts in a namespace are not permitted here" if attempt.returncode else None


class VirtualMachines:
    """Machines 1 to `count` on one network bridge; the context manager removes them at the end."""

    def __init__(self, count):
        self.suffix, self.count = secrets.token_hex(2), count
        self.network = f"10.{77 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self.directory = Path(tempfile.mkdtemp(prefix="tr"))
        self.running = {}  # machine -> process of its namespace

    def __enter__(self):
        try:
            self._ip("link", "add", f"tb{self.suffix}", "type", "bridge")
            self._ip("addr", "add", f"{self.network}.254/24", "dev", f"tb{self.suffix}")
            self._ip("link", "set", f"tb{self.suffix}", "up")
            for i in range(1, self.count + 1):
                name, outer, inner = f"tn{self.suffix}{i}", f"to{self.suffix}{i}", f"ti{self.suffix}{i}"
                self._ip("netns", "add", name)
                self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
                self._ip("link", "set", outer, "master", f"tb{self.suffix}", "up")
                self._ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", inner)
                self._ip("-n", name, "link", "set", inner, "up")
            (self.directory / "token").write_text(secrets.token_hex(32))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for i in list(self.running):
            self.kill(i)
        for i in range(1, self.count + 1):
            self._ip("netns", "del", f"tn{self.suffix}{i}", check=False)
        self._ip("link", "del", f"tb{self.suffix}", check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _ip(self, *args, check=True):
        subprocess.run(["ip", *args], check=check, capture_output=True)

    def address(self, i):
        """Return the IP address of machine `i`."""
        return f"{self.network}.{i}"

    def run(self, i, script):
        """Start machine `i` with a shell script as its first process."""
        inside = ["ip", "netns", "exec", f"tn{self.suffix}{i}", "unshare", "--mount", "--pid", "--fork"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.running[i] = subprocess.Popen(
            [*inside, "--kill-child", "--mount-proc", "sh", "-c", f"{MOUNTS} && {script}"],
            stdout=(self.directory / f"output{i}").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=inherited
            | {
                "MACHINE": str(i),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(self.directory / "token"),
                "RAY_USAGE_STATS_ENABLED": "0",
                "OMP_NUM_THREADS": "1",
            },
        )
        return self.running[i]

    def output(self, i):
        """Return everything that machine `i` has printed."""
        return (self.directory / f"output{i}").read_text()

    def kill(self, i):
        """Kill all processes of machine `i`."""
        process = self.running.pop(i)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def disconnect(self, i):
        """Take down the network link of machine `i`."""
        self._ip("link", "set", f"to{self.suffix}{i}", "down")

    def pause(self, i):
        """Stop all processes of machine `i`; their connections stay open."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue  # the process has ended meanwhile
        own = {self.running[i].pid}
        while more := {pid for pid, parent in parents.items() if parent in own} - own:
            own |= more
        for pid in own - {self.running[i].pid}:
            os.kill(pid, signal.SIGSTOP)

    def throttle(self, i, rate, queue_ms):
        """Limit what is sent to machine `i`: packets wait for up to `queue_ms`, and the rest are dropped."""
        self._tc("add", i, "tbf", "rate", rate, "burst", "4kb", "latency", f"{queue_ms}ms")

    def dropped_packets(self, i):
        """Return how many packets to a throttled machine were dropped."""
        shown = subprocess.run(
            ["tc", "-s", "-j", "qdisc", "show", "dev", f"to{self.suffix}{i}"],
            check=True,
            capture_output=True,
            text=True,
        )
        return sum(queue["drops"] for queue in json.loads(shown.stdout))

    def _tc(self, verb, i, *args):
        command = ["tc", "qdisc", verb, "dev", f"to{self.suffix}{i}", "root", *args]
        subprocess.run(command, check=True, capture_output=True)

    def start_head(self, driver, cpus=5):
        """Start Ray's head on machine 1; run `driver` there once the file `go` exists in `directory`."""
        wait = f"while [ ! -e {self.directory}/go ]; do sleep 0.1; done"
        start = f"ray start --head --node-ip-address={self.address(1)} --port={PORT} --num-cpus={cpus}"
        self.run(1, f"{start} --include-dashboard=false && {wait} && {sys.executable} {driver}")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.running[1].poll() is None:
            try:
                return socket.create_connection((self.address(1), PORT), timeout=1).close()
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the head did not start: {self.output(1)}")

    def join(self, i, cpus=5):
        """Start Ray on machine `i` as a node of the cluster; return once it runs."""
        address = f"{self.address(1)}:{PORT}"
        self.run(
            i, f"ray start --address={address} --node-ip-address={self.address(i)} --num-cpus={cpus} --block"
        )
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in self.output(i):
            if time.monotonic() > deadline or self.running[i].poll() is not None:
                raise RuntimeError(f"machine {i} did not join: {self.output(i)}")
            time.sleep(0.1)
