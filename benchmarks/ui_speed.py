"""How fast `shoal ui` is with many long runs: first paint, frames, memory, and what open tabs cost.

    python benchmarks/ui_speed.py [--runs 200] [--points 100000] [--compared 4] [--out benchmarks/results/ui.json]

Makes synthetic run folders, serves them, and looks at them with headless Chromium. The metrics of all runs are one file
under many names, which the system has in memory: what is measured is reading and drawing, not the disk. `cold` is a
server that has seen none of the runs. Frames are those that the browser's own trace says were shown, while it is
sent events of a mouse that turns its wheel, or moves over a chart; tabs are connections that read the stream of events.
Run it on an idle machine; the load is kept with the results, and every measurement is added to the file, so that a slow
one is not replaced by a lucky one.
"""

import argparse
import itertools
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.chromium import Browser, box_of, find_browser
from tests.ui.folders import append_lines, make_lines, make_run

TOKEN = "a-token-for-measuring"
CATEGORY, DISPLAYED = "disabled-by-default-display.framedisplayed", "Display::FrameDisplayed"
"""Of the browser's trace: the event for every frame that is shown."""
TRACED_SECONDS = 4.0
CODE = """
from shoal.ui.server import Site
site = Site({root!r}, token={token!r})
print(site.address, flush=True)
site.run()
"""
PATIENCE = 300.0
"""Seconds that a busy machine is given."""
SECONDS = 10.0
"""For which frames are counted, and tabs followed."""


def make_runs(root: Path, runs: int, points: int) -> None:
    """Folders whose metrics have so many lines: one is made, the others have other settings and the same metrics."""
    first = make_run(root / "run_0000", lines=points, num_seeds=3)
    for number in range(1, runs):
        folder = make_run(root / f"run_{number:04d}", lines=1, total_lines=points, num_seeds=3, seed=number)
        (folder / "metrics.jsonl").unlink()
        os.link(first / "metrics.jsonl", folder / "metrics.jsonl")


class Served:
    """`shoal ui` in a process of its own."""

    def __init__(self, root: Path, cache: Path):
        code = CODE.format(root=str(root), token=TOKEN)
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.start_seconds = time.perf_counter() - begin
        self.port = int(self.address.split(":")[2].split("/")[0])

    def memory_mb(self) -> float:
        """The most that it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def first_paint(browser: Browser, served: Served) -> dict[str, float]:
    """Seconds from asking for the page until all rows of the list are drawn."""
    begin = time.perf_counter()
    browser.visit(f"{served.address}#/runs", "document.querySelectorAll('tr[data-name]').length > 0", 1280, 900)
    whole = time.perf_counter() - begin
    browser.settle()
    painted = browser.js("performance.getEntriesByName('first-contentful-paint')[0]?.startTime / 1000")
    rows = browser.js("document.querySelectorAll('tr[data-name]').length")
    return {"rows_seconds": round(whole, 3), "first_contentful_paint_seconds": round(painted, 3), "rows": rows}


def traced(browser: Browser, act: Callable[[], None]) -> dict[str, float]:
    """Frames per second that the browser shows while something is done, and the longest time without one."""
    browser.events.clear()
    browser.call("Tracing.start", transferMode="ReportEvents", traceConfig={"includedCategories": [CATEGORY]})
    act()
    browser.call("Tracing.end")
    while not any(event.get("method") == "Tracing.tracingComplete" for event in browser.events):
        browser.js("new Promise((done) => setTimeout(done, 20))")
    told = [event["params"]["value"] for event in browser.events if event.get("method") == "Tracing.dataCollected"]
    events = [event for part in told for event in part]
    drawn = sorted(event["ts"] / 1000 for event in events if event["name"] == DISPLAYED)
    assert len(drawn) > 1, "the browser's trace tells of no frames"
    gaps = [b - a for a, b in itertools.pairwise(drawn)]
    return {
        "frames": len(drawn),
        "frames_per_second": round(1000 * len(gaps) / sum(gaps), 1),
        "longest_frame_ms": round(max(gaps), 1),
    }


def scroll(browser: Browser) -> None:
    """The wheel turns over the page, down and up again."""
    act_often(
        browser, lambda i: {"type": "mouseWheel", "x": 640, "y": 450, "deltaX": 0, "deltaY": 60 - 120 * (i // 60 % 2)}
    )


def hover(browser: Browser) -> None:
    """The mouse moves over a chart, and what it points at is told."""
    left, width, y = browser.js(f"((box) => [box.x + 60, box.width - 80, box.y + 50])({box_of('.plot')})")
    act_often(browser, lambda i: {"type": "mouseMoved", "x": left + (i * 7) % width, "y": y})


def act_often(browser: Browser, event: Callable[[int], dict[str, Any]]) -> None:
    """Events of the mouse for some seconds, each as soon as the page has taken the one before, 120 a second at most."""
    begin = time.perf_counter()
    for i in itertools.count():
        if time.perf_counter() - begin > TRACED_SECONDS:
            return
        browser.call("Input.dispatchMouseEvent", **event(i))
        time.sleep(max(0.0, 1 / 120 - (time.perf_counter() - begin) % (1 / 120)))


def follow(served: Served, query: str, stop: threading.Event, counts: list[int]) -> None:
    """A tab that follows a run, as far as the server can tell."""
    with socket.create_connection(("127.0.0.1", served.port)) as line:
        head = f"GET /api/events?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        line.sendall(head.encode())
        line.settimeout(0.2)
        while not stop.is_set():
            try:
                counts.append(line.recv(1 << 16).count(b"event: lines"))
            except TimeoutError:
                continue


def tabs(served: Served, root: Path, number: int = 10) -> dict[str, Any]:
    """What so many tabs cost that follow runs which write a line every second."""
    runs = [make_run(root / f"live_{i}", lines=100, total_lines=10_000) for i in range(number)]
    stop, counts = threading.Event(), []
    for run in runs:
        size = (run / "metrics.jsonl").stat().st_size
        threading.Thread(target=follow, args=(served, f"list=0&run={run.name}&after={size}", stop, counts)).start()
    time.sleep(3)
    before, begin = served.cpu_seconds(), time.perf_counter()
    for second in range(int(SECONDS)):
        for run in runs:
            append_lines(run, make_lines(1, 10_000, 3, -30.0, 0, first=101 + second))
        time.sleep(1)
    share = (served.cpu_seconds() - before) / (time.perf_counter() - begin)
    stop.set()
    return {"tabs": number, "cores": round(share, 3), "events": sum(counts)}


def measure(runs: int, points: int, compared: int) -> dict[str, Any]:
    """All figures; each is printed when it is there."""
    found: dict[str, Any] = {"runs": runs, "points": points}

    def keep(name: str, value: Any) -> None:
        found[name] = value
        print(f"{name}: {value}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        root, cache = Path(place) / "runs", Path(place) / "cache"
        root.mkdir()
        make_runs(root, runs, points)
        keep("load", [round(each, 1) for each in os.getloadavg()])
        browser = Browser(find_browser(), str(Path(place) / "profile"))
        browser.patience = PATIENCE
        served = Served(root, cache)
        keep("start_seconds", round(served.start_seconds, 3))
        keep("cold", first_paint(browser, served))
        keep("cold_server_cpu_seconds", round(served.cpu_seconds(), 2))
        keep("warm", first_paint(browser, served))
        served.close()
        served = Served(root, cache)
        keep("new_server_with_cache", first_paint(browser, served))
        keep("scrolling", traced(browser, lambda: scroll(browser)))
        begin = time.perf_counter()
        browser.visit(f"{served.address}#/run/run_0000", "document.querySelectorAll('.curve').length > 0", 1280, 900)
        keep("run_seconds", round(time.perf_counter() - begin, 3))
        keep("hovering", traced(browser, lambda: hover(browser)))
        keep("tabs", tabs(served, root))
        begin, before = time.perf_counter(), served.cpu_seconds()
        chosen = "&".join(f"run=run_{i:04d}" for i in range(compared))
        drawn = "document.querySelectorAll('.final tbody tr').length > 0"
        browser.visit(f"{served.address}#/compare?{chosen}&by=run", drawn, 1280, 900)
        times = {"runs": compared, "seconds": round(time.perf_counter() - begin, 3)}
        keep("compare", times | {"server_cpu_seconds": round(served.cpu_seconds() - before, 2)})
        keep("memory_mb", round(served.memory_mb(), 1))
        browser.close()
        served.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--compared", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ui.json")
    options = parser.parse_args()
    found = measure(options.runs, options.points, options.compared)
    found |= {"command": "python benchmarks/ui_speed.py", "python": platform.python_version(), "cores": os.cpu_count()}
    before = json.loads(options.out.read_text()) if options.out.exists() else []
    options.out.write_text(json.dumps([*before, found], indent=2) + "\n")


if __name__ == "__main__":
    main()
