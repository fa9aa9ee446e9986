"""Who listens where: the sockets of processes, as the system tells of them."""

import contextlib
import ipaddress
import os
from pathlib import Path


def listening(pids):
    """`(what the process is, address)` of every TCP socket on which one of the processes listens."""
    owners = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80].strip()
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    owners[os.readlink(link)] = name
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in owners:
                found.append((owners[f"socket:[{inode}]"], _address(local.split(":")[0])))
    return found


def _address(text):
    """An address as the kernel writes it: words of 32 bits, each in the byte order of the machine."""
    words = [int(text[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
