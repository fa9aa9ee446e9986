"""How the processes of a run on several hosts find each other, keep in step, and notice that one is gone.

Host 0 listens at an address that all are told. Each of the others connects to it and says who it is, which versions it
has and what it is about to train; host 0 compares that with its own, and then all join JAX's own service
(`jax.distributed`), through which arrays travel. The connection stays: host 0 says through it what is done next, and a
connection that breaks, or is silent for long, is a host that is gone.

Nothing here is authenticated or encrypted, and neither is what JAX sends: the hosts must be on a network of their own.
"""

import contextlib
import dataclasses
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax

from shoal.core.errors import HostError, OptionError, require

MEET_SECONDS = 30.0
"""How long hosts look for each other."""
PING_SECONDS = 3.0
SILENCE_SECONDS = 30.0
"""A host that has said nothing for so long, not even a ping, is gone."""
GRACE_SECONDS = 10.0
"""How long a process may take to end by itself once a host is gone; it may be waiting for it in a collective."""
HEARTBEAT_SECONDS = 60
"""The same within JAX's own service, which ends a process at once; this one is to notice first."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the user wants to stop."""
LONGEST = 1 << 20
"""Bytes of a message, at most."""
FAILED = 2
"""The exit code of a process that is ended because another is gone."""
VARIABLE = "JAX_COORDINATOR_ADDRESS"
"""The environment variable that JAX, too, reads the address from."""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The place of this process among the hosts of a run. coordinator: ADDRESS:PORT of host 0, the same on all."""

    count: int
    index: int
    coordinator: str = ""

    def __post_init__(self):
        whole = all(type(number) is int for number in (self.count, self.index))
        require(whole and self.count >= 2, "run", "hosts", self.count, "a whole number, 2 or greater")
        require(0 <= self.index < self.count, "run", "host_index", self.index, f"between 0 and {self.count - 1}")
        object.__setattr__(self, "coordinator", self.coordinator or os.environ.get(VARIABLE, ""))
        address, _, port = self.coordinator.rpartition(":")
        if not (address and port.isdigit() and 0 < int(port) < 1 << 16):
            raise OptionError(
                f"run: coordinator must be ADDRESS:PORT of host 0, such as 10.0.0.1:4321, got {self.coordinator!r} "
                f"(--coordinator, or the environment variable {VARIABLE})"
            )

    @property
    def leads(self) -> bool:
        """Whether this is host 0, which decides what is done, and keeps the run folder."""
        return self.index == 0

    @property
    def place(self) -> tuple[str, int]:
        """Address and port of host 0."""
        address, _, port = self.coordinator.rpartition(":")
        return address.strip("[]"), int(port)

    def __str__(self) -> str:
        return f"host {self.index} of {self.count}"


class Roll:
    """The connections of one process to the others; made by `call_roll`."""

    def __init__(self, hosts: Hosts, lines: Mapping[int, "Line"], port: int):
        self.hosts, self.lines, self.port = hosts, dict(lines), port
        self.orders: queue.Queue[list[Any] | None] = queue.Queue()
        self.stop_asked = threading.Event()
        self.lost: str | None = None
        self.over = threading.Event()
        self.how_to_resume = ""
        for index, line in self.lines.items():
            line.socket.settimeout(SILENCE_SECONDS)
            threading.Thread(target=self._listen, args=(index, line), daemon=True, name=f"host {index}").start()
        threading.Thread(target=self._ping, daemon=True, name="pings").start()

    def tell(self, *order: Any) -> None:
        """Says to all others what is done next; only host 0 does."""
        self.check()
        for index, line in self.lines.items():
            try:
                line.send({"do": order})
            except OSError as error:
                self._lose(index, str(error))
        self.check()

    def next_order(self, stopped: threading.Event) -> list[Any]:
        """What host 0 says is done next; waits for it. stopped: by the user, which host 0 is told."""
        while True:
            if stopped.is_set() and not self.stop_asked.is_set():
                self.stop_asked.set()
                with contextlib.suppress(OSError):
                    self.lines[0].send({"stop": True})
            try:
                order = self.orders.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if order is None:
                raise HostError(self.lost or f"host 0 at {self.hosts.coordinator} is gone")
            return order

    def check(self) -> None:
        """Raises if a host is gone."""
        if self.lost:
            raise HostError(self.lost)

    def explain(self, error: Exception) -> Exception:
        """The error of a collective that failed, as what it means: if a host is gone, that shows within a moment."""
        until = time.monotonic() + 5.0
        while self.lost is None and time.monotonic() < until and not isinstance(error, HostError):
            time.sleep(0.05)
        return error if self.lost is None else HostError(self.lost)

    def end(self, reason: str = "") -> None:
        """Says that the run is over, and why if it failed; afterwards nobody is missed."""
        before = self.over.is_set()
        self.over.set()
        for line in self.lines.values():
            with contextlib.suppress(OSError, ValueError):  # it may be closed
                if self.hosts.leads and not before:
                    line.send({"do": ["end", reason]})
                line.socket.shutdown(socket.SHUT_WR if self.hosts.leads else socket.SHUT_RDWR)

    def _listen(self, index: int, line: "Line") -> None:
        try:
            while True:
                message = line.receive()
                if "do" in message:
                    if message["do"][0] == "end":
                        self.over.set()
                        self.orders.put(message["do"])
                        return
                    self.orders.put(message["do"])
                elif message.get("stop"):
                    self.stop_asked.set()
        except TimeoutError:
            self._lose(index, f"it has said nothing for {SILENCE_SECONDS:.0f} s")
        except (OSError, ValueError) as error:
            self._lose(index, str(error))
        finally:
            line.close()

    def _ping(self) -> None:
        while not self.over.wait(PING_SECONDS):
            for line in self.lines.values():
                with contextlib.suppress(OSError):  # whoever listens on that line notices
                    line.send({})

    def _lose(self, index: int, why: str) -> None:
        if self.over.is_set() or self.lost is not None:
            return
        who = f"host {index}" + (f" at {self.hosts.coordinator}" if index == 0 else f" at {self.lines[index].peer}")
        self.lost = f"{who} is gone ({why}), and {self.hosts} ends with it. {self.how_to_resume}".strip()
        self.orders.put(None)
        timer = threading.Timer(GRACE_SECONDS, self._end_process)
        timer.daemon = True
        timer.start()

    def _end_process(self) -> None:
        """Ends a process whose main thread waits for a host that is gone."""
        if not self.over.is_set():
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"error: {self.lost}\n")
                sys.stderr.flush()
            os._exit(FAILED)


class Line:
    """Messages, one JSON object a line, over a connection."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.file = connection, connection.makefile("rb")
        self.peer = connection.getpeername()[0]
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        with self._sending:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
            self.socket.close()

    def receive(self) -> dict[str, Any]:
        text = self.file.readline(LONGEST)
        if not text.endswith(b"\n"):
            raise OSError("the connection was closed" if len(text) < LONGEST else "its message is too long")
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("its message is not one of Shoal's")
        return message


def call_roll(hosts: Hosts, card: Mapping[str, Any], seconds: float = MEET_SECONDS) -> Roll:
    """Meets the other hosts; refuses, on all of them, cards that differ. card: what must be the same on all."""
    plain: dict[str, Any] = json.loads(json.dumps(card))
    return _gather(hosts, plain, seconds) if hosts.leads else _report(hosts, plain, seconds)


def _gather(hosts: Hosts, card: dict[str, Any], seconds: float) -> Roll:
    """Host 0's part: waits for all others, compares, and says to all how it went."""
    until = time.monotonic() + seconds
    lines: dict[int, Line] = {}
    try:
        with _listening(hosts) as server:
            while len(lines) < hosts.count - 1:
                server.settimeout(max(0.01, until - time.monotonic()))
                try:
                    line = Line(server.accept()[0])
                except TimeoutError:
                    missing = [str(index) for index in range(1, hosts.count) if index not in lines]
                    raise HostError(
                        f"host 0 waited {seconds:.0f} s at {hosts.coordinator}, and host {', '.join(missing)} did not "
                        "come. Start every host within that time, with the same --hosts and --coordinator."
                    ) from None
                line.socket.settimeout(max(0.1, until - time.monotonic()))
                _hear(hosts, card, lines, line)
        port = _free_port(hosts.place[0])
    except HostError as error:
        for line in lines.values():
            with contextlib.suppress(OSError):
                line.send({"refused": str(error)})
            line.close()
        raise
    for line in lines.values():
        line.send({"port": port})
    return Roll(hosts, lines, port)


def _hear(hosts: Hosts, card: dict[str, Any], lines: dict[int, Line], line: Line) -> None:
    """Admits whoever has connected, if it is a host; anybody may knock at a port."""
    told: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        told = line.receive()
    if type(told.get("index")) is int and isinstance(told.get("card"), dict):
        _admit(hosts, card, told, lines, line)
    else:
        line.close()


def _admit(hosts: Hosts, card: dict[str, Any], told: dict[str, Any], lines: dict[int, Line], line: Line) -> None:
    index, taken = told["index"], told["index"] in lines
    lines[len(lines) + hosts.count if taken else index] = line  # whoever is refused is told so, too
    if taken or index == 0:
        raise HostError(f"two hosts say that they are host {index}: give each its own --host-index")
    if told.get("count") != hosts.count:
        raise HostError(
            f"host {index} counts {told.get('count')} hosts, host 0 counts {hosts.count}: give both the same"
        )
    for what, advice in _WANTED.items():
        if (difference := _difference(card.get(what), told["card"].get(what), "")) is not None:
            where, ours, theirs = difference
            differ = f"the {what} of host {index} " + (
                "differs from that" if what == "experiment" else "differ from those"
            )
            raise HostError(
                f"{differ} of host 0: {where or what} is {_short(theirs)} there and {_short(ours)} here. {advice}"
            )


_WANTED = {
    "versions": "Install the same on all hosts.",
    "experiment": "Start all hosts with the same target and options.",
    "devices": "Give all hosts the same --devices, or none.",
    "checkpoint": "All hosts must see the same run folder: put it where all of them can read it.",
}
"""Entries of a card that must be the same on all hosts, and what to do if they are not."""


def _report(hosts: Hosts, card: dict[str, Any], seconds: float) -> Roll:
    """The part of every other host: finds host 0, says who it is, and hears how it went."""
    until = time.monotonic() + seconds
    line = _connect(hosts, until, seconds)
    line.send({"index": hosts.index, "count": hosts.count, "card": card})
    line.socket.settimeout(seconds + 5.0)  # it may have to wait for others as long
    try:
        answer = line.receive()
    except (OSError, ValueError) as error:
        line.close()
        raise HostError(f"host 0 at {hosts.coordinator} did not answer {hosts}: {error}") from error
    if "refused" in answer:
        line.close()
        raise HostError(str(answer["refused"]))
    return Roll(hosts, {0: line}, int(answer["port"]))


def _connect(hosts: Hosts, until: float, seconds: float) -> Line:
    while True:
        try:
            return Line(socket.create_connection(hosts.place, max(0.1, until - time.monotonic())))
        except OSError as error:
            if time.monotonic() + 0.2 >= until:
                raise HostError(
                    f"{hosts} found nobody at {hosts.coordinator} within {seconds:.0f} s ({error}). Is host 0 running "
                    "(--host-index 0), is that its address, and does no firewall stand between?"
                ) from error
            time.sleep(0.2)


def _listening(hosts: Hosts) -> socket.socket:
    address, port = hosts.place
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family, backlog=hosts.count)
    except OSError as error:
        raise HostError(
            f"host 0 cannot listen at {hosts.coordinator} ({error.strerror or error}): --coordinator must be an "
            "address of the machine with --host-index 0, and a port that is free there"
        ) from error


def _free_port(address: str) -> int:
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((address, 0), family=family) as server:
        return server.getsockname()[1]


def _difference(ours: Any, theirs: Any, where: str) -> tuple[str, Any, Any] | None:
    """The first entry in which two trees of plain data differ: where it is, and both values."""
    if ours == theirs:
        return None
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            inside = f"{where}.{name}" if where else name
            if (found := _difference(ours.get(name), theirs.get(name), inside)) is not None:
                return found
    return where, ours, theirs


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def join_devices(roll: Roll) -> None:
    """Makes the devices of all hosts known to each other; before JAX has been used for anything."""
    address, _ = roll.hosts.place
    place = f"[{address}]:{roll.port}" if ":" in address else f"{address}:{roll.port}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            place,
            roll.hosts.count,
            roll.hosts.index,
            cluster_detection_method="deactivate",
            initialization_timeout=int(MEET_SECONDS),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=int(MEET_SECONDS),
            coordinator_bind_address=place,
        )
    except RuntimeError as error:
        raise HostError(f"{roll.hosts} could not join the others' devices at {place}: {error}") from error
