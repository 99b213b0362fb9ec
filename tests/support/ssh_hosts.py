"""Hosts that are reached by a real ssh: namespaces of this machine, each with an sshd.

Each has a network, processes and a name of its own; files are shared. They need root. The `ssh` on
PATH is a script that connects from a namespace of its own, with the configuration of the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.jobs import until

CLUSTER = Path(__file__).parents[1] / "cluster"
SERVER = CLUSTER / "openssh_server"
DELAYING_LINK = CLUSTER / "delaying_link"
WRONG_CLOCK = CLUSTER / "wrong_clock.c"
KEPT = Path(__file__).parents[2] / ".venv" / "openssh-server"
GROUPS = Path("/sys/fs/cgroup/cpu")
"""Control groups, version 1, with CPU quotas."""
QUOTA_PERIOD = 50_000
"""Microseconds. Steps of small models take several of these if little of each is theirs, and on a
busy machine waiting for a core is still the lesser part of it."""
NETWORK = "10.213.77"
SSHD = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AcceptEnv LD_PRELOAD
"""
CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  User root
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/{known}
  StrictHostKeyChecking yes
  HostKeyAlias {name}
"""
START = """\
hostname {name}
mount --bind {folder}/passwd /etc/passwd
mount --bind {folder}/shadow /etc/shadow
mount --bind {folder}/hosts /etc/hosts
mkdir -p /run/sshd
exec {sshd} -D -e -f {folder}/{name}.sshd
"""


def can_have_namespaces() -> bool:
    """Whether this user may make namespaces with networks."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare", "ssh", "ssh-keygen")))


class SshHosts:
    """Running hosts, `node-a` and so on. `bin`: the folder with `ssh`, for PATH."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.bin = folder / "bin"
        self.names = tuple(names)
        self._folder = folder
        self._space = f"mgpu{os.getpid()}"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._relays: list[subprocess.Popen[bytes]] = []
        self._config = folder / "config"

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def environment(self) -> dict[str, str]:
        """The environment in which `ssh` is the one of these hosts."""
        return os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def command(self, name: str, *words: str) -> list[str]:
        """A command that runs another one on a host."""
        return [str(self.bin / "ssh"), "-o", "BatchMode=yes", name, *words]

    def run(self, name: str, *words: str) -> str:
        """What a command prints on a host. It must succeed."""
        ended = subprocess.run(
            self.command(name, *words), capture_output=True, text=True, check=False, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def set_link(self, name: str, state: str) -> None:
        """Takes the network of a host `down`, or `up`."""
        _ip("-n", self._of(name), "link", "set", "eth0", state)

    def lose(self, *names: str) -> None:
        """Ends all processes of hosts, and lets nothing reach them any more. ssh does not reach
        them even before: refused between the two, it would show that a machine still runs."""
        for name in names:
            _ip("-n", self._space, "route", "add", "unreachable", self.address(name))
        first = [Path(f"/proc/{self.server_pid(name)}") for name in names]
        for name in names:
            self._servers[name].kill()
        for name in names:
            self._servers[name].wait()
        # The last processes of all; connections have been closed.
        until(lambda: not any(process.exists() for process in first), 60)
        for name in names:
            self.set_link(name, "down")

    def limit_link(self, name: str, rate: str) -> None:
        """Limits what a host sends, to `10mbit` for example."""
        limit = f"tbf rate {rate} burst 32kbit latency 50ms".split()
        command = ["tc", "-n", self._of(name), "qdisc", "add", "dev", "eth0", "root", *limit]
        subprocess.run(command, check=True)

    def delay_link(self, name: str, seconds: float) -> None:
        """Delays what a host sends from now on. Connections stay as they are."""
        number = self.names.index(name)
        inner, outer = f"q{number}", f"r{number}"
        link = f"-n {self._space} link"
        _ip(*f"{link} add {inner} type veth peer name {outer}".split())
        _ip(*f"{link} set {inner} up".split())
        _ip(*f"{link} set p{number} nomaster".split())
        _ip(*f"{link} set {outer} master br0 up".split())
        relay = [str(DELAYING_LINK), f"p{number}", inner, str(seconds)]
        command = ["ip", "netns", "exec", self._space, sys.executable, *relay]
        self._relays.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def set_clock(self, name: str, ahead: float) -> None:
        """Lets all that is started on a host by ssh from now on read a clock that is wrong."""
        library = self._folder / "wrong_clock.so"
        options = ("-shared", "-fPIC", "-O1", f"-DAHEAD={ahead:.0f}")
        subprocess.run(["cc", *options, "-o", library, WRONG_CLOCK, "-ldl"], check=True)
        with self._config.open("a") as file:  # sshd, started again, would refuse for a moment
            file.write(f"Host {name}\n  SetEnv LD_PRELOAD={library}\n")
        assert abs(float(self.run(name, "date", "+%s")) - time.time() - ahead) < 60

    def server_pid(self, name: str) -> int:
        """The process number of the host's sshd, its first process."""
        pid = self._servers[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0])

    def list_pids(self, name: str, pids: Sequence[int]) -> list[int]:
        """The pids here of processes that a host knows by `pids`."""
        space = os.stat(f"/proc/{self.server_pid(name)}/ns/pid").st_ino
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                numbers = status.read_text().partition("NSpid:")[2].split("\n")[0].split()
                inside = os.stat(status.parent / "ns" / "pid").st_ino == space
                if inside and int(numbers[-1]) in pids:
                    found.append(int(numbers[0]))
        return found

    def add_alias(
        self,
        name: str,
        host: str,
        *,
        port: int = 22,
        key: str = "user_key",
        known: str = "known_hosts",
    ) -> None:
        """Lets ssh know another name of a host, with another port, user's key or known keys."""
        with self._config.open("a") as file:
            file.write(
                CLIENT.format(
                    name=name,
                    address=self.address(host),
                    port=port,
                    folder=self._folder,
                    key=key,
                    known=known,
                )
            )

    def make_key(self, name: str) -> str:
        """A new key that nobody knows; its public part."""
        path = self._folder / name
        command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        subprocess.run(command, check=True)
        return (self._folder / f"{name}.pub").read_text()

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _start(self) -> None:
        self.make_key("user_key")
        key = self.make_key("host_key")
        known = "".join(f"{name} {key}" for name in (*self.names, "refused", "locked"))
        self.write("known_hosts", known)
        self.write("passwd", _with_sshd(Path("/etc/passwd").read_text()))
        self.write("shadow", "root:*:19000:0:99999:7:::\n")
        hosts = "".join(f"{self.address(name)} {name}\n" for name in self.names)
        self.write("hosts", f"127.0.0.1 localhost\n{hosts}")
        self.bin.mkdir()
        ssh = self.bin / "ssh"
        real = shutil.which("ssh")
        ssh.write_text(
            f'#!/bin/sh\nexec ip netns exec {self._space} {real} -F {self._config} "$@"\n'
        )
        ssh.chmod(0o700)
        _ip("netns", "add", self._space)
        _ip("-n", self._space, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._space, "addr", "add", f"{NETWORK}.254/24", "dev", "br0")
        _ip("-n", self._space, "link", "set", "br0", "up")
        for name in self.names:
            self._start_host(name)
            self.add_alias(name, name)
        for name in self.names:
            self._await(name)

    def _start_host(self, name: str) -> None:
        space = self._of(name)
        _ip("netns", "add", space)
        # Both ends are made where they belong: the machine's own network is left alone.
        peer = f"p{self.names.index(name)}"
        _ip(*f"-n {self._space} link add {peer} type veth peer name eth0 netns {space}".split())
        _ip(*f"-n {self._space} link set {peer} master br0 up".split())
        _ip(*f"-n {space} addr add {self.address(name)}/24 dev eth0".split())
        _ip("-n", space, "link", "set", "lo", "up")
        self.set_link(name, "up")
        sshd = subprocess.run([SERVER, KEPT], capture_output=True, text=True, check=True)
        self.write(f"{name}.sshd", SSHD.format(address=self.address(name), folder=self._folder))
        script = START.format(name=name, folder=self._folder, sshd=sshd.stdout.strip())
        apart = ["--uts", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._servers[name] = subprocess.Popen(
                ["ip", "netns", "exec", space, "unshare", *apart, "sh", "-ec", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _await(self, name: str) -> None:
        end = time.monotonic() + 20
        while subprocess.run(
            self.command(name, "true"), capture_output=True, check=False
        ).returncode:
            log = (self._folder / f"{name}.log").read_text()
            assert time.monotonic() < end, log
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends all processes of the hosts."""
        for process in (*self._servers.values(), *self._relays):
            process.kill()  # it is the first process of its host
            process.wait()

    def _end(self) -> None:
        self.stop()
        for name in self.names:
            _ip("netns", "del", self._of(name), check=False)
        _ip("netns", "del", self._space, check=False)

    def _of(self, name: str) -> str:
        return f"{self._space}-{name}"


@contextmanager
def ssh_hosts(folder: Path, *names: str) -> Iterator[SshHosts]:
    """Hosts with these names; at the end nothing of them is left."""
    hosts = SshHosts(folder, names)
    try:
        hosts._start()
        yield hosts
    finally:
        hosts._end()


@contextmanager
def cpu_quota(hosts: SshHosts, name: str, cores: float, pids: Sequence[int] = ()) -> Iterator[None]:
    """Limits all that runs on a host from now on, or processes that run there; ends the hosts.
    `pids`: these, as the host numbers them."""
    group = GROUPS / f"mgpu-test-{hosts.server_pid(name)}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * QUOTA_PERIOD)))
        limited = hosts.list_pids(name, pids) if pids else [hosts.server_pid(name)]
        for pid in limited:
            (group / "cgroup.procs").write_text(str(pid))
        hosts.run(name, "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu")
        hosts.run(name, "mount -t cgroup -o cpu none /sys/fs/cgroup/cpu")
        yield
    finally:
        hosts.stop()
        until(lambda: not (group / "cgroup.procs").read_text(), 60)
        group.rmdir()


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=not check)


def _with_sshd(passwd: str) -> str:
    """The users, with the one whose rights sshd takes."""
    if any(line.startswith("sshd:") for line in passwd.splitlines()):
        return passwd
    return f"{passwd.rstrip()}\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
