"""A game in time: who sits there, when the next step is due, and what the page is told.

A world with a pace is stepped at that pace, with what the person holds; one without waits for the person, and lets some
time pass where others move, so that they can be watched. `advance(now)` does what is due: a thread calls it, or a test.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.api.seats import RANDOM
from shoal.batching.regroup import return_groups
from shoal.core.errors import OptionError, ShoalError, require
from shoal.human.game import Game
from shoal.human.picture import plain_scene
from shoal.human.results import append_line, describe_episode, now_in_words

OTHERS_SECONDS = 0.7
"""How long the page shows a position in which others are to move, where the world waits for people."""
MOST_EPISODES = 200
"""So many of the last results are shown."""
MAX_FPS = 120.0


class SeatTakenError(OptionError):
    """Somebody else plays in that seat."""


class Session:
    """Episodes of one person in one seat. fps: steps a second; 0: the world waits. results: the file to append to.

    more: what else stands in every result, such as the opponents. All methods may be called from any thread.
    """

    def __init__(
        self,
        game: Game,
        fps: float,
        seed: int = 0,
        results: Path | None = None,
        more: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        check_fps(fps)
        self.game, self.fps, self.seed, self.results = game, fps, seed, results
        self.more = {"opponents": {"run": RANDOM}, **(more or {})}
        self.clock = clock
        self.phase = "ready"  # ready, playing, paused or over
        self.episode = 0
        self.scores: list[float] = []
        self.error = ""
        self.version = 0
        self._person: str | None = None
        self._streams = 0
        self._held: list[Any] | None = None
        self._chosen: list[Any] | None = None
        self._due = 0.0
        self._asked = 0.0
        self._forget()
        self._changed = threading.Condition(threading.RLock())
        self._listeners: set[Callable[[], object]] = set()
        self._closed = False
        game.begin(seed)

    # People.

    def join(self, person: str) -> None:
        """Takes the seat; refused while somebody else sits there."""
        with self._changed:
            if self._person not in (None, person):
                seat = f"{self.game.seat[0]}[{self.game.seat[1]}]"
                raise SeatTakenError(f"somebody plays {seat} already, in another window. Close that one, then reload.")
            self._person = person
            self._streams += 1
            self._publish()

    def leave(self, person: str) -> None:
        """Gives the seat back when the person's last window is gone; the game is paused."""
        with self._changed:
            if self._person != person:
                return
            self._streams -= 1
            if self._streams <= 0:
                self._person, self._streams = None, 0
                if self.phase == "playing":
                    self._set_phase("paused")

    def require_seated(self, person: str) -> None:
        """Refuses whoever does not sit here."""
        if self._person is None or person != self._person:
            raise SeatTakenError("you do not sit at this table: reload the page")

    # What the person does.

    def act(self, person: str, given: Any, step: Any = None) -> None:
        """An action, checked now, done when the next step is due. step: the one that it is for, if the world waits."""
        with self._changed:
            self.require_seated(person)
            if self.phase != "playing":
                raise OptionError(f"the game is {self.phase}: nothing moves")
            if self.fps > 0:
                self.game.controls.read(given)
                self._held = given
                return
            if not self.game.active:
                raise OptionError("it is not your turn: wait for the others")
            if step != len(self.game.actions) or self._chosen is not None:
                raise OptionError("that was for an earlier position: look again, then choose")
            self.game.controls.read(given, self.game.legal)
            self._chosen = given
            self._changed.notify_all()

    def command(self, person: str, name: Any) -> None:
        """start, pause, resume or restart."""
        with self._changed:
            self.require_seated(person)
            phases = {"start": ("ready", "over"), "pause": ("playing",), "resume": ("paused",)}
            phases["restart"] = ("playing", "paused", "over")
            require(name in phases, "play", "command", name, "start, pause, resume or restart")
            if self.phase not in phases[name]:
                raise OptionError(f"cannot {name}: the game is {self.phase}")
            if name == "pause":
                self._set_phase("paused")
            elif name == "resume":
                self._set_phase("playing")
            else:
                self._begin()

    def _begin(self) -> None:
        if self.phase in ("playing", "paused"):
            self._keep("abandoned")
        self.game.begin((self.seed + self.episode) % 2**32)
        self.episode += 1
        self._forget()
        self._started, self._begun = now_in_words(), self.clock()
        self._set_phase("playing")

    def _forget(self) -> None:
        self._held = self._chosen = None
        self._times: list[float] = []
        self._decisions: list[float | None] = []
        self._started, self._begun = "", 0.0

    def _set_phase(self, phase: str) -> None:
        now = self.clock()
        self.phase = phase
        self._due = now + (1.0 / self.fps if self.fps else OTHERS_SECONDS)
        self._asked = now
        self._publish()

    # Time.

    def advance(self, now: float) -> float | None:
        """Does what is due at that time; seconds until something is due again, None: not before something changes."""
        with self._changed:
            if self.phase != "playing":
                return None
            if self.fps == 0 and self.game.active:
                if self._chosen is None:
                    return None
                chosen, self._chosen = self._chosen, None
                return self._step(chosen, now, now - self._asked)
            if now < self._due:
                return self._due - now
            return self._step(self._hold(), now, None)

    def _hold(self) -> list[Any] | None:
        """What is done where nobody is waited for; a key that is held down may have become illegal."""
        if self.fps == 0 or not self.game.active:
            return None
        controls, legal = self.game.controls, self.game.legal
        held = self._held if self._held is not None else controls.neutral(legal=legal)
        try:
            controls.read(held, legal)
        except OptionError:
            held = controls.neutral(legal=legal)
        return held

    def _step(self, given: list[Any] | None, now: float, decision: float | None) -> float | None:
        try:
            result = self.game.step(given)
        except ShoalError as error:
            self.error = str(error)
            self._set_phase("over")
            return None
        self._times.append(round(now - self._begun, 4))
        self._decisions.append(None if decision is None else round(decision, 4))
        if result.over:
            self._finish("terminated" if result.terminated else "truncated")
            return None
        pause = 1.0 / self.fps if self.fps else OTHERS_SECONDS
        late = self.fps and now - self._due > 5 * pause  # after a hiccup, steps are not made up for
        self._due = now + pause if late or not self.fps else self._due + pause
        self._asked = self.clock()
        self._publish()
        return max(0.0, self._due - self.clock())

    def _finish(self, ended: str) -> None:
        self.scores.append(self.game.own_return)
        self._keep(ended)
        self._set_phase("over")

    def _keep(self, ended: str) -> None:
        """Writes the episode down. What cannot be written is said on the page, and the game goes on."""
        if self.results is None or not self.game.actions:
            return
        timing = {
            "started": self._started,
            "fps": self.fps,
            "seconds": self._times[-1] if self._times else 0.0,
            "times": self._times,
            "decision_seconds": self._decisions,
        }
        try:
            append_line(
                self.results, describe_episode(self.game, ended, timing, {"episode": self.episode, **self.more})
            )
            self.error = ""
        except (ShoalError, OSError, ValueError) as error:
            self.error = str(error)

    # What the page is told.

    def describe(self) -> dict[str, Any]:
        """What does not change: the world, the seat, the controls."""
        experiment = self.game.setup.experiment
        return {
            "world": experiment.env,
            "seat": f"{self.game.seat[0]}[{self.game.seat[1]}]",
            "name": _circle_name(self.game),
            "alone": self._alone(),
            "fps": self.fps,
            "opponents": self.more["opponents"],
            "policies": "exploring" if self.game.explore else "greedy",
            "controls": self.game.controls.describe(),
        }

    def _alone(self) -> str:
        """The return group that is the person's seat and nobody else's, if there is one."""
        groups = return_groups(self.game.setup.env)
        return next((name for name, seats in groups.items() if seats == (self.game.seat,)), "")

    def snapshot(self) -> dict[str, Any]:
        """Everything that changes; each snapshot is whole, so that a page may miss any but the last."""
        with self._changed:
            game = self.game
            return {
                "version": self.version,
                "phase": self.phase,
                "episode": self.episode,
                "step": len(game.actions),
                "active": game.active,
                "present": game.present,
                "legal": game.controls.legal_choices(game.legal),
                "reward": float(game.rewards[-1][game.seat[0]][game.seat[1]]) if game.rewards else 0.0,
                "return": game.own_return,
                "returns": self._group_returns(),
                "said": game.said if self.fps == 0 else [],
                "scores": self.scores[-MOST_EPISODES:],
                "error": self.error,
                "scene": plain_scene(game.view.scene),
            }

    def _group_returns(self) -> dict[str, float]:
        found = self.game.returns()
        seats = return_groups(self.game.setup.env)
        return {name: float(sum(found[group][i] for group, i in own)) for name, own in seats.items()}

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Calls the listener after every change, from any thread; the result ends it."""
        with self._changed:
            self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _publish(self) -> None:
        with self._changed:
            self.version += 1
            self._changed.notify_all()
            for listener in list(self._listeners):
                listener()

    # The thread.

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self) -> None:
        """Does what is due, until `close`."""
        with self._changed:
            while not self._closed:
                self._changed.wait(self.advance(self.clock()))

    def close(self) -> None:
        """Ends it; an episode that is not over is kept as abandoned."""
        with self._changed:
            if self._closed:
                return
            if self.phase in ("playing", "paused"):
                self._keep("abandoned")
            self._closed = True
            self._publish()


def check_fps(fps: float) -> None:
    """Refuses a pace that nobody can play at."""
    require(0 <= fps <= MAX_FPS, "play", "fps", fps, f"between 0 (wait for the person) and {MAX_FPS:g}")


def _circle_name(game: Game) -> str:
    """The circle of the person's seat in the picture, if the world names its circles by group and number."""
    circles, (group, index) = game.view.scene.circles, game.seat
    names = circles.names if circles is not None else ()
    return next((name for name in (f"{group}_{index}", group) if name in names), "")
