"""Pictures of every screen of `shoal ui`, and of the page of `shoal play`, to be looked at.

    python benchmarks/screens.py FOLDER [--only PART] [--widths 360 1280 2560] [--themes light dark]

Writes `NAME-WIDTH-THEME.png` for every screen, each width and both themes, over runs that are made up. `--sheets` puts
the pictures of each screen beside each other, at a third of their size.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.chromium import Browser, find_browser
from tests.ui.gallery import SCREENS, SPECIAL, make_runs, make_special_runs

from shoal.ui.server import Site, _Server

WIDTHS = (360, 1280, 2560)
HEIGHTS = {360: 780, 1280: 900, 2560: 1400}
MOST_HEIGHT = 4000
WORLDS = ("pong", "tag/grid", "mpe/simple_tag", "battle/open", "swarm/pursuit", "cards/leduc")
"""Worlds whose games are shown, one of each family."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="screens whose name contains this")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--themes", nargs="+", default=("light", "dark"))
    parser.add_argument("--sheets", action="store_true", help="one picture for each screen")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        browser = Browser(find_browser(), str(Path(place) / "profile"))
        browser.patience = 120.0
        try:
            for name, address, ready in itertools.chain(screens(Path(place)), games()):
                if options.only in name:
                    picture(browser, name, address, ready, options)
        finally:
            browser.close()


def screens(place: Path) -> Iterator[tuple[str, str, str]]:
    """Name, address, and what is true when it is drawn, of all screens; a server answers meanwhile."""
    (root := place / "runs").mkdir()
    make_runs(root)
    make_special_runs(root)
    site = Site(root)
    server = _Server(site.config())
    threading.Thread(target=server.run, kwargs={"sockets": [site.socket]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    for name, where in {**SCREENS, **SPECIAL}.items():
        yield name, f"{site.address}{where}", "Boolean(window.shoalReady)"


def games() -> Iterator[tuple[str, str, str]]:
    """The same of games, one world after the other."""
    from shoal.human.game import Game
    from shoal.human.server import Table
    from shoal.human.session import Session
    from shoal.training.experiment import Experiment

    for env in WORLDS:
        game = Game(Experiment(env).setup, {}, (next(iter(Experiment(env).setup.env.groups)), 0))
        with Table(Session(game, game.world.play_fps, seed=3)) as table:
            yield f"play-{env.replace('/', '-')}", table.address, "Boolean(window.shoal?.state)"


def picture(browser: Browser, name: str, address: str, ready: str, options: argparse.Namespace) -> None:
    """All pictures of one screen, as high as it is."""
    import matplotlib.image

    made = []
    for theme in options.themes:
        for width in options.widths:
            browser.visit(address, ready, width, HEIGHTS.get(width, 900), theme)
            if name.startswith("play"):
                browser.key("Enter")
                browser.wait("shoal.state.phase === 'playing'")
            browser.settle()
            time.sleep(0.5)
            height = min(MOST_HEIGHT, max(HEIGHTS.get(width, 900), browser.js("document.documentElement.scrollHeight")))
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.settle()
            path = options.folder / f"{name}-{width}-{theme}.png"
            path.write_bytes(browser.picture())
            made.append(matplotlib.image.imread(path)[:, :, :3])
    print(name, flush=True)
    if options.sheets:
        matplotlib.image.imsave(options.folder / f"sheet-{name}.png", sheet(made))


def sheet(pictures: list[np.ndarray]) -> np.ndarray:
    """Pictures beside each other, each averaged to fit into 700 pixels of width."""
    small = [shrunk(each, max(1, -(-each.shape[1] // 700))) for each in pictures]
    high = max(each.shape[0] for each in small)
    padded = [np.pad(each, ((0, high - each.shape[0]), (4, 4), (0, 0)), constant_values=0.5) for each in small]
    return np.concatenate(padded, axis=1)


def shrunk(picture: np.ndarray, by: int) -> np.ndarray:
    rows, columns = picture.shape[0] // by, picture.shape[1] // by
    return picture[: rows * by, : columns * by].reshape(rows, by, columns, by, 3).mean(axis=(1, 3))


if __name__ == "__main__":
    main()
