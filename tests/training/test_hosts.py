"""Several hosts train as one machine with as many devices would; what keeps them from it is said by name, and soon."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal import presets
from shoal.core.errors import HostError, OptionError
from shoal.training import hosts, roll
from shoal.training.devices import AXIS, make_mesh, make_mesh_of_hosts, place
from shoal.training.roll import Hosts, call_roll
from shoal.training.runner import Local

CARD = {"versions": {"jax": "1.0"}, "experiment": {"num_envs": 8, "learners": {"a": 1}}, "devices": None}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def meet(*cards, seconds=5.0, indices=None):
    """What every host gets from the roll call: a roll, or the text of an error."""
    address, found = f"127.0.0.1:{free_port()}", {}

    def call(number, index, card):
        try:
            found[number] = call_roll(Hosts(len(cards), index, address), card, seconds)
        except HostError as error:
            found[number] = str(error)

    places = enumerate(zip(indices or range(len(cards)), cards, strict=True))
    threads = [threading.Thread(target=call, args=(number, *entry)) for number, entry in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(cards))]


def end(*rolls):
    """Ends rolls, and waits until their connections are closed."""
    for one in rolls:
        one.end()
    until = time.monotonic() + 5.0
    lines = [line for one in rolls for line in one.lines.values()]
    while time.monotonic() < until and any(line.socket.fileno() >= 0 for line in lines):
        time.sleep(0.01)


@pytest.fixture
def pair(monkeypatch):
    """Host 0 and host 1, connected."""
    ended = threading.Event()
    monkeypatch.setattr(roll.Roll, "_end_process", lambda self: ended.set())
    monkeypatch.setattr(roll, "GRACE_SECONDS", 0.1)
    first, second = meet(CARD, CARD)
    yield first, second, ended
    end(first, second)


def test_orders_arrive_in_their_order(pair):
    first, second, _ = pair
    assert first.port == second.port
    for order in (("advance", 3), ("latch",), ("advance", 1)):
        first.tell(*order)
    never = threading.Event()
    assert [second.next_order(never) for _ in range(3)] == [["advance", 3], ["latch"], ["advance", 1]]
    first.end("a reason")
    assert second.next_order(never) == ["end", "a reason"]


def test_another_host_can_ask_to_stop(pair):
    first, second, _ = pair
    wanted = threading.Event()
    wanted.set()
    first.tell("latch")
    assert second.next_order(wanted) == ["latch"]
    assert first.stop_asked.wait(5.0)


@pytest.mark.parametrize("who", ["first", "second"])
def test_a_host_that_is_gone_ends_the_others(pair, who):
    """At once if its process ended; and whoever waits for it in a collective is ended from outside."""
    first, second, ended = pair
    gone, left = (first, second) if who == "first" else (second, first)
    left.how_to_resume = "Go on with: shoal resume"
    for line in gone.lines.values():
        line.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(HostError, match=r"host [01] at .* is gone .*Go on with: shoal resume"):
        second.next_order(threading.Event()) if left is second else _tell_until_lost(first)
    assert ended.wait(5.0)
    assert isinstance(left.explain(RuntimeError("a collective failed")), HostError)


def _tell_until_lost(first):
    for _ in range(100):
        first.tell("latch")
        time.sleep(0.05)


def test_a_silent_host_is_gone(monkeypatch):
    monkeypatch.setattr(roll.Roll, "_end_process", lambda self: None)
    monkeypatch.setattr(roll.Roll, "_ping", lambda self: None)
    monkeypatch.setattr(roll, "SILENCE_SECONDS", 0.2)
    listen = roll.Roll._listen  # host 0, which is as lonely, would else be the first to hang up now and then
    monkeypatch.setattr(roll.Roll, "_listen", lambda self, *line: None if self.hosts.leads else listen(self, *line))
    first, second = meet(CARD, CARD)
    with pytest.raises(HostError, match="it has said nothing for"):
        second.next_order(threading.Event())
    first.lines[1].close()  # nobody listens there who would
    end(first, second)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": {"jax": "1.1"}}, 'the versions of host 1 differ from those of host 0: jax is "1.1" there'),
        ({"experiment": {"num_envs": 16, "learners": {"a": 1}}}, "num_envs is 16 there and 8 here. Start all hosts"),
        ({"experiment": {"num_envs": 8, "learners": {"a": 2}}}, "learners.a is 2 there and 1 here"),
        ({"devices": 2}, "devices is 2 there and null here. Give all hosts the same --devices"),
        ({"checkpoint": {"name": "step-1"}}, "All hosts must see the same run folder"),
    ],
)
def test_hosts_that_do_not_fit_are_refused_by_name(change, said):
    for told in meet(CARD, CARD | change):
        assert said in told


def test_two_hosts_with_one_index():
    told = meet(CARD, CARD, CARD, indices=(0, 1, 1))
    assert told == ["two hosts say that they are host 1: give each its own --host-index"] * 3


def test_hosts_that_do_not_come_are_named_with_the_address():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(HostError, match=rf"host 0 waited 0 s at {address}, and host 1, 2 did not come"):
        call_roll(Hosts(3, 0, address), CARD, 0.3)
    with pytest.raises(HostError, match=rf"host 1 of 2 found nobody at {address} within 0 s"):
        call_roll(Hosts(2, 1, address), CARD, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HostError, match=f"host 0 cannot listen at {address}"):
            call_roll(Hosts(2, 0, address), CARD, 0.3)
    assert roll.MEET_SECONDS <= 30


def test_a_stranger_who_knocks_is_not_counted(monkeypatch):
    address = ("127.0.0.1", free_port())
    found = []
    hosts_of = Hosts(2, 0, f"{address[0]}:{address[1]}")
    leader = threading.Thread(target=lambda: found.append(call_roll(hosts_of, CARD, 5.0)))
    leader.start()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"hello": 1}\n'):
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            try:
                with socket.create_connection(address, 1.0) as knock:
                    knock.sendall(noise)
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
    second = call_roll(Hosts(2, 1, hosts_of.coordinator), CARD, 5.0)
    leader.join()
    end(found[0], second)
    assert list(found[0].lines) == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1, 0, "a:1"), "hosts must be a whole number, 2 or greater"),
        ((2, 2, "a:1"), "host_index must be between 0 and 1"),
        ((2, 0, "a"), "coordinator must be ADDRESS:PORT"),
        ((2, 0, "a:99999"), "coordinator must be ADDRESS:PORT"),
        ((2, 0, ""), "JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_a_place_among_hosts_is_checked(given, said, monkeypatch):
    monkeypatch.delenv(roll.VARIABLE, raising=False)
    with pytest.raises(OptionError, match=said):
        Hosts(*given)


def test_the_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv(roll.VARIABLE, "[::1]:4321")
    assert Hosts(2, 1).place == ("::1", 4321)


def test_a_process_that_has_used_jax_cannot_join():
    jax.local_devices()
    experiment = presets.get("control/cartpole")
    with pytest.raises(HostError, match="JAX was used before the hosts met"):
        Local(hosts=Hosts(2, 0, "127.0.0.1:1")).prepare(experiment)
    with pytest.raises(OptionError, match="leave out env_workers"):
        Local(hosts=Hosts(2, 0, "127.0.0.1:1"), env_workers=2).prepare(experiment)


def test_one_host_has_the_mesh_of_its_devices():
    assert make_mesh_of_hosts(256, 4) == make_mesh(256, 4)
    assert make_mesh_of_hosts(8, 4, 1) == make_mesh(8, 4, 1)
    with pytest.raises(OptionError, match=r"multiple of 8 \(1 hosts x 2 devices x 4 minibatches\), got 12. Try 16"):
        make_mesh_of_hosts(12, 4, 2)
    with pytest.raises(OptionError, match="which every host has"):
        make_mesh_of_hosts(12, 4, 3)


def test_devices_that_hear_only_themselves_are_noticed(monkeypatch):
    mesh = make_mesh(2, 1, 2)
    hosts.connect_devices(mesh)
    monkeypatch.setattr(hosts.lax, "psum", lambda number, axis: number)
    with pytest.raises(HostError, match="counted 1 of themselves, but there are 2"):
        hosts.connect_devices(mesh)


def test_what_is_exchanged_is_counted():
    """By hand: five times three floats, then one, in the loop over updates; the branches of a condition count once."""
    mesh = make_mesh(2, 1, 2)

    def local(x):
        def step(total, _):
            return jax.lax.psum(total, AXIS), None

        def update(_, x):
            x = jax.lax.scan(step, x, length=5)[0]
            return x + jax.lax.pmax(x[0], AXIS)

        x = jax.lax.fori_loop(0, x.astype(jnp.int32)[0], update, x)
        return jax.lax.cond(x[0] > 0, lambda x: jax.lax.psum(x, AXIS), lambda x: x, x)

    traced = jax.make_jaxpr(jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))(jnp.ones(3))
    assert hosts._collective_bytes(traced.jaxpr) == 5 * 12 + 4 + 12


def test_a_tree_is_placed_as_a_copy_to_devices_places_it():
    mesh = make_mesh(2, 1, 2)
    tree = {"split": np.arange(4.0, dtype=np.float32), "key": jax.random.key(3)}
    shardings = {"split": NamedSharding(mesh, P(AXIS)), "key": NamedSharding(mesh, P())}
    placed = place(tree, shardings)
    assert placed["split"].sharding == shardings["split"]
    np.testing.assert_array_equal(placed["split"], tree["split"])
    np.testing.assert_array_equal(jax.random.key_data(placed["key"]), jax.random.key_data(tree["key"]))
    assert hosts._whole(placed["split"]).tolist() == [0.0, 1.0, 2.0, 3.0]


# Real processes.

SIZES = ["--num-envs", "16", "--num-steps", "4", "--total-env-steps", "320", "--devices", "1"]
SMALL = ["--algo.network.hidden", "8", "--algo.epochs", "2", "--algo.minibatches", "2"]


def start(*words, cores="1", **options):
    here = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(here / "src"), "JAX_NUM_CPU_DEVICES": cores}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(here / ".cache" / "xla")}
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **options)


def results(*processes, timeout=400):
    """What each printed as JSON; all must have ended well."""
    told = [process.communicate(timeout=timeout) for process in processes]
    for process, (_, err) in zip(processes, told, strict=True):
        assert process.returncode == 0, err
    return [json.loads(out) for out, _ in told]


def on_hosts(count, *words, extra=()):
    address = f"127.0.0.1:{free_port()}"
    placed = ["--hosts", count, "--coordinator", address, "--json"]
    return [start(*words, *placed, "--host-index", i, *(extra if i == 0 else ())) for i in range(count)]


@pytest.mark.slow
def test_two_hosts_train_as_two_devices_do_and_go_on_as_one(tmp_path):
    target = ["train", "control/cartpole", *SIZES[:-1]]
    first, second = results(*on_hosts(2, *target, "1", *SMALL, extra=["--run-dir", tmp_path / "two"]))
    (alone,) = results(start(*target, "2", *SMALL, "--json", "--run-dir", tmp_path / "one", cores="2"))
    (hash_alone,) = results(start("eval", tmp_path / "one", "--episodes", "2", "--json"))
    assert first["updates"] == second["updates"] == alone["updates"] == 5
    assert first["weights_sha256"] == second["weights_sha256"] == hash_alone["weights_sha256"]
    assert first["bytes_per_update"] > 0
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"one", "two"}  # the second host wrote nothing
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    ours, theirs = ([_figures(line) for line in found] for found in lines)
    assert ours == theirs
    more = ["--total-env-steps", "640"]
    (longer,) = results(start("resume", tmp_path / "two", *more, "--devices", "2", "--json", cores="2"))
    both = results(*on_hosts(2, "resume", tmp_path / "one", *more, "--devices", "1"))
    (first_hash,) = results(start("eval", tmp_path / "two", "--episodes", "2", "--json"))
    assert longer["updates"] == both[0]["updates"] == 10
    assert both[0]["weights_sha256"] == both[1]["weights_sha256"] == first_hash["weights_sha256"]


def _figures(line):
    return {name: value for name, value in json.loads(line).items() if "second" not in name and "memory" not in name}


@pytest.mark.slow
def test_a_host_that_is_killed_ends_the_other_with_advice(tmp_path):
    long = ["train", "control/cartpole", *SIZES, "--total-env-steps", "100M", *SMALL]
    first, second = on_hosts(2, *long, extra=["--run-dir", tmp_path / "run"])
    until = time.monotonic() + 300
    while time.monotonic() < until and not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.2)
    time.sleep(1.0)
    second.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    _, err = first.communicate(timeout=120)
    assert time.monotonic() - killed < 60
    second.communicate()
    assert first.returncode == 2
    assert "host 1 at 127.0.0.1 is gone" in err
    assert f"shoal resume {tmp_path / 'run'} --hosts 2 --host-index I" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_hosts_with_different_options_are_refused(tmp_path):
    address = ["--hosts", "2", "--coordinator", f"127.0.0.1:{free_port()}", "--run-dir", tmp_path / "run"]
    processes = [start("train", "control/cartpole", *SIZES, *address, "--host-index", i, "--seed", i) for i in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "the experiment of host 1 differs from that of host 0: seed is 1 there and 0 here" in err
    assert not (tmp_path / "run").exists()
