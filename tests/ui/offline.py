"""Looks at every screen where there is no network: `unshare -rn python -m tests.ui.offline FOLDER`.

Prints JSON: whether the network was really off, how many screens there were, and what the browser complained about.
"""

import fcntl
import json
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from shoal.ui.server import Site, _Server
from tests.chromium import Browser, find_browser
from tests.ui.gallery import SCREENS, SPECIAL, make_runs, make_special_runs

SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def main() -> None:
    place = Path(sys.argv[1])
    loopback_up()
    found = {"offline": is_offline(), "screens": 0, "complaints": []}
    (root := place / "runs").mkdir()
    make_runs(root)
    make_special_runs(root)
    site = Site(root)
    server = _Server(site.config())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [site.socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    browser = Browser(find_browser(), str(place / "profile"))
    browser.patience = 60.0
    browser.local = (f"http://127.0.0.1:{site.port}/", "data:", "about:", "blob:")
    for name, where in {**SCREENS, **SPECIAL}.items():
        browser.visit(f"{site.address}{where}", "Boolean(window.shoalReady)", 1280, 900)
        failed = [e["params"] for e in browser.events if e.get("method") == "Network.loadingFailed"]
        failed = [event for event in failed if not event.get("canceled")]
        found["complaints"] += [[name, str(each)[:300]] for each in (*browser.complaints(), *failed)]
        found["screens"] += 1
    browser.close()
    server.handle_exit(0, None)
    thread.join(10)
    print(json.dumps(found))


def loopback_up() -> None:
    """A new network has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def is_offline() -> bool:
    """Whether no other machine can be reached, and no interface but the loopback is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sent:
        try:
            sent.connect(("192.0.2.1", 53))
        except OSError:
            return [name for _, name in socket.if_nameindex()] == ["lo"]
    return False


if __name__ == "__main__":
    main()
