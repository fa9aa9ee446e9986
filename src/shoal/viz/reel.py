"""Films as files: episodes of one run, or of several side by side, as GIF, WebP, MP4, or a PNG of chosen moments.

A film is made of panels, one a run. Each has a title, an arena that looks like the replay page, and the returns so far.
Panels move in step: the n-th episodes of all begin together, and one that is over waits for the others.

    make_film("film.webp", [Panel("mpe/simple_tag", "after 1,000 updates", [Take(scene, returns)])])
"""

import dataclasses
import io
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, RunError, ShoalError, require
from shoal.core.types import Scene
from shoal.viz.motion import Motion, read_motion
from shoal.viz.raster import INSTALL, LEAST, MOST, THEMES, Painter, font, pillow, plain_text
from shoal.viz.replay import write_file

FORMATS = {".gif": "GIF", ".webp": "WebP", ".mp4": "MP4", ".png": "PNG, of the last moment or chosen ones"}
"""What the end of a file's name asks for."""
STEPS_PER_SECOND = 15.0
"""How fast the world runs, as on the replay page."""
PAUSE = 0.8
"""Seconds for which the last moment of an episode is held."""
STILLS = 16
"""Moments that a PNG shows at most."""
LONGEST = 20_000
"""Frames of a film at most."""
_COLOURS = 128
"""Colours of a GIF, and of pictures that are kept small."""
_GAP = 10
_OWNER = "shoal.film"


class MissingEncoderError(ShoalError, ImportError):
    """The package that writes MP4 is not installed."""


@dataclasses.dataclass(frozen=True)
class Take:
    """One episode: a Scene with a leading time axis `[T]`, or pictures `[height, width, 3]`; returns `[T]` by name."""

    frames: Scene | Sequence[np.ndarray]
    returns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Panel:
    """The episodes of one run, and what is written above them."""

    title: str
    subtitle: str
    takes: Sequence[Take]


@dataclasses.dataclass(frozen=True)
class Look:
    """How a film looks. size: pixels of the longer side of an arena. speed: 1 is that of the replay page.

    bare: without titles and returns, as for a page that has its own. colours: at most so many, which makes a WebP
    smaller; None: as many as there are. at: of a PNG, the steps of the first episode that it shows, side by side; by
    default the last moment of all.
    """

    size: int = 480
    fps: float = 30.0
    speed: float = 1.0
    theme: str = "light"
    bare: bool = False
    colours: int | None = None
    at: tuple[int, ...] = ()

    def __post_init__(self):
        whole = type(self.size) is int and LEAST <= self.size <= MOST
        require(whole, _OWNER, "size", self.size, f"a whole number of pixels from {LEAST} to {MOST}")
        for name, most in (("fps", 100), ("speed", 100)):
            value = getattr(self, name)
            sound = isinstance(value, int | float) and math.isfinite(value) and 0 < value <= most
            require(sound, _OWNER, name, value, f"a number greater than 0, and at most {most}")
        require(self.theme in THEMES, _OWNER, "theme", self.theme, "light or dark")
        few = self.colours is None or (type(self.colours) is int and 2 <= self.colours <= 256)
        require(few, _OWNER, "colours", self.colours, "a number from 2 to 256")
        steps = isinstance(self.at, tuple | list) and all(type(step) is int and step >= 0 for step in self.at)
        require(
            steps and len(self.at) <= STILLS, _OWNER, "at", self.at, f"at most {STILLS} steps, whole numbers from 0"
        )


def check_format(path: str | os.PathLike[str], look: Look | None = None) -> str:
    """The ending of a film's name; refuses one that says nothing, is not for this look, or whose package is missing."""
    ending = Path(path).suffix.lower()
    known = ", ".join(f"{name} ({what})" for name, what in FORMATS.items())
    require(ending in FORMATS, _OWNER, "the name of the file", str(path), f"one that ends with {known}")
    if look and look.at and ending != ".png":
        raise OptionError(f"{_OWNER}: at chooses the moments of a .png, not of a {ending}: leave it out")
    pillow()
    if ending == ".mp4":
        _ffmpeg()
    return ending


def make_film(path: str | os.PathLike[str], panels: Sequence[Panel], look: Look | None = None) -> Path:
    """Writes a film; the end of the file's name says in which format."""
    look = look or Look()
    ending = check_format(path, look)
    reel = Reel(panels, look)
    if ending == ".mp4":
        content = _mp4(reel, look)
    elif ending == ".gif":
        content = _gif(reel, look)
    elif ending == ".webp":
        content = _webp(reel, look)
    else:
        content = _png(reel)
    write_file(path, content)
    return Path(path)


class Reel:
    """The pictures of a film, drawn when they are asked for: `reel[i]`, a `PIL.Image`; all have the same size."""

    def __init__(self, panels: Sequence[Panel], look: Look):
        require(bool(panels), _OWNER, "panels", panels, "at least one")
        counts = {len(panel.takes) for panel in panels}
        require(len(counts) == 1 and counts != {0}, _OWNER, "takes", counts, "as many in every panel, and at least one")
        self.look = look
        self.panels = [_Drawn(panel, look) for panel in panels]
        self.columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
        self.times = list(self._schedule(counts.pop()))
        if len(self.times) > LONGEST:
            raise OptionError(
                f"{_OWNER}: {len(self.times):,} frames are more than a film has ({LONGEST:,}): "
                "raise the speed, lower the frames per second, or take fewer episodes"
            )

    def __len__(self) -> int:
        return len(self.times)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height; even, as video codecs want it."""
        wide, high = self._cell
        rows = math.ceil(len(self.panels) / self.columns)
        width = self.columns * wide + (self.columns - 1) * _GAP
        height = rows * high + (rows - 1) * _GAP
        return width + width % 2, height + height % 2

    @property
    def _cell(self) -> tuple[int, int]:
        return max(panel.width for panel in self.panels), max(panel.height for panel in self.panels)

    def __getitem__(self, i: int) -> Any:
        return self._picture(*self.times[i])

    def _picture(self, take: int, time: float) -> Any:
        image = pillow().Image.new("RGB", self.size, THEMES[self.look.theme].page)
        wide, high = self._cell
        for k, panel in enumerate(self.panels):
            row, column = divmod(k, self.columns)
            x = column * (wide + _GAP) + (wide - panel.width) // 2
            image.paste(panel.picture(take, time), (x, row * (high + _GAP)))
        return image

    def stills(self) -> Any:
        """The moments that were chosen, side by side; the last one of all if none was."""
        last = max(panel.last(0) for panel in self.panels)
        late = next((step for step in self.look.at if step > last), None)
        if late is not None:
            raise OptionError(f"{_OWNER}: at has step {late}, but the episode ends with step {last}")
        pictures = [self._picture(0, float(step)) for step in self.look.at] or [self[len(self) - 1]]
        wide, high = self.size
        strip = pillow().Image.new("RGB", (len(pictures) * (wide + _GAP) - _GAP, high), THEMES[self.look.theme].page)
        for i, picture in enumerate(pictures):
            strip.paste(picture, (i * (wide + _GAP), 0))
        return strip

    def _schedule(self, takes: int) -> Iterator[tuple[int, float]]:
        """Of each frame, which episode it shows, and at which time."""
        step = STEPS_PER_SECOND * self.look.speed / self.look.fps
        for take in range(takes):
            last = max(panel.last(take) for panel in self.panels)
            shown = math.ceil(last / step - 1e-9)
            yield from ((take, k * step) for k in range(shown))
            yield from [(take, float(last))] * max(1, round(PAUSE * self.look.fps))


class _Drawn:
    """A panel as pictures."""

    def __init__(self, panel: Panel, look: Look):
        self.panel, self.theme, self.bare = panel, THEMES[look.theme], look.bare
        self.takes = [_make_stage(take, look) for take in panel.takes]
        unit = min(max(look.size / 480, 0.75), 2.0)
        self.title, self.text, self.pad = round(15 * unit), round(12.5 * unit), round(6 * unit)
        self.names = list(panel.takes[0].returns)
        self.width, inner = max(stage.width for stage in self.takes), max(stage.height for stage in self.takes)
        self.top = 0 if look.bare else self.title + self.text + 3 * self.pad
        self.foot = 0 if look.bare or not self.names else len(self.names) * (self.text + self.pad) + self.pad
        self.height = self.top + inner + self.foot

    def last(self, take: int) -> int:
        return self.takes[take].length - 1

    def picture(self, take: int, time: float) -> Any:
        stage = self.takes[take]
        time = min(time, float(stage.length - 1))
        PIL = pillow()
        image = PIL.Image.new("RGB", (self.width, self.height), self.theme.page)
        image.paste(stage.picture(time), ((self.width - stage.width) // 2, self.top))
        if not self.bare:
            pen = PIL.ImageDraw.Draw(image)
            self._heading(pen, take)
            self._returns(pen, stage, self.panel.takes[take].returns, int(time))
        return image

    def _heading(self, pen: Any, take: int) -> None:
        episodes = len(self.takes)
        below = self.panel.subtitle + (f", episode {take + 1} of {episodes}" if episodes > 1 else "")
        width = self.width - 2 * self.pad
        large, small = font(self.title), font(self.text)
        pen.text((self.pad, self.pad), _fitted(self.panel.title, large, width), fill=self.theme.ink, font=large)
        place = (self.pad, self.title + 2 * self.pad - 1)
        pen.text(place, _fitted(below, small, width), fill=self.theme.muted, font=small)

    def _returns(self, pen: Any, stage: "_Stage", returns: Mapping[str, np.ndarray], frame: int) -> None:
        small, y = font(self.text), self.height - self.foot + self.pad
        for name in self.names:
            values = np.asarray(returns[name], float)
            group = next((colour for key, colour in stage.groups.items() if key in (name, name.split("[")[0])), None)
            middle, reach = y + self.text / 2 + 1, self.text / 3
            dot = self.theme.muted if group is None else self.theme.palette[group]
            box = (self.pad, middle - reach, self.pad + 2 * reach, middle + reach)
            pen.ellipse(box, fill=dot)
            number = _number(values, min(frame, len(values) - 1))
            wide = self.width - 5 * self.pad - 2 * reach - small.getlength(number)
            look = {"font": small, "anchor": "lm"}
            pen.text(
                (2 * self.pad + 2 * reach, middle), _fitted(f"return of {name}", small, wide), self.theme.ink, **look
            )
            pen.text((self.width - self.pad, middle), number, fill=self.theme.ink, font=small, anchor="rm")
            y += self.text + self.pad


class _Stage:
    """What moves in a panel during an episode."""

    width: int
    height: int
    length: int
    groups: Mapping[str, int]

    def picture(self, time: float) -> Any:
        raise AssertionError("each kind of stage draws itself")


class _SceneStage(_Stage):
    def __init__(self, scene: Scene, look: Look):
        self.motion: Motion = read_motion(scene)
        self.painter = Painter(self.motion.bounds, look.size, look.theme)
        self.width, self.height = self.painter.width, self.painter.height
        self.length, self.groups = self.motion.length, self.motion.groups

    def picture(self, time: float) -> Any:
        return self.painter.picture(self.motion, time)


class _PictureStage(_Stage):
    """An environment that drew itself: its pictures, as large as the others'."""

    def __init__(self, frames: Sequence[np.ndarray], look: Look):
        require(len(frames) > 0, _OWNER, "frames", len(frames), "at least one picture")
        height, width = frames[0].shape[:2]
        scale = look.size / max(height, width)
        self.frames, self.length, self.groups = frames, len(frames), {}
        self.width, self.height = max(1, round(width * scale)), max(1, round(height * scale))

    def picture(self, time: float) -> Any:
        Image = pillow().Image
        image = Image.fromarray(np.ascontiguousarray(self.frames[int(time)]))
        return image.resize((self.width, self.height), Image.Resampling.LANCZOS)


def _make_stage(take: Take, look: Look) -> _Stage:
    return _SceneStage(take.frames, look) if isinstance(take.frames, Scene) else _PictureStage(take.frames, look)


def _fitted(text: str, face: Any, width: float) -> str:
    """The text, cut short if it is wider."""
    text = plain_text(text)
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def _number(values: np.ndarray, frame: int) -> str:
    known = values[np.isfinite(values)]
    largest = np.abs(known).max() if known.size else 0.0
    digits = 2 if largest < 10 else 1 if largest < 1000 else 0
    return f"{values[frame]:,.{digits}f}" if np.isfinite(values[frame]) else "-"


def _lazy_sequence(reel: Reel, convert: Any) -> Any:
    """The reel as one image with many frames, which are drawn while they are written: few are in memory at once."""
    Image = pillow().Image

    class Frames(Image.Image):
        n_frames = len(reel)

        def __init__(self) -> None:
            super().__init__()
            self.place = -1
            self.seek(0)

        def seek(self, frame: int) -> None:
            if not 0 <= frame < len(reel):
                raise EOFError
            if frame == self.place:
                return
            image = convert(reel[frame])
            self.im, self._mode, self._size, self.palette = image.im, image.mode, image.size, image.palette
            self.place = frame

        def tell(self) -> int:
            return self.place

    return Frames()


def _milliseconds(look: Look) -> int:
    return max(10, round(1000 / look.fps))


def _palette_of(reel: Reel, colours: int) -> Any:
    """An image with the colours of the film: those of its theme, frequent ones, and those that are near to the rest."""
    Image = pillow().Image
    chosen = np.unique(np.linspace(0, len(reel) - 1, 6).astype(int))
    strip = Image.fromarray(np.concatenate([np.asarray(reel[int(i)]) for i in chosen]))
    theme = THEMES[reel.look.theme]
    plain = (theme.arena, theme.page, theme.ink, theme.edge, theme.grid, theme.muted, *theme.palette)
    counts = sorted(strip.getcolors(1 << 24) or [], reverse=True)
    exact = list(dict.fromkeys([*plain[: colours // 2], *(rgb for _, rgb in counts[: colours // 4])]))
    few = strip.quantize(max(2, colours - len(exact)), method=Image.Quantize.MEDIANCUT).getpalette() or []
    holder = Image.new("P", (1, 1))
    holder.putpalette([*(value for rgb in exact for value in rgb), *few[: 3 * (colours - len(exact))]])
    return holder


def _gif(reel: Reel, look: Look) -> bytes:
    Image, palette = pillow().Image, _palette_of(reel, look.colours or _COLOURS)
    frames = _lazy_sequence(reel, lambda image: image.quantize(palette=palette, dither=Image.Dither.NONE))
    file = io.BytesIO()
    # Frame times of a GIF are hundredths of a second.
    frames.save(file, "GIF", save_all=True, loop=0, duration=10 * max(2, round(100 / look.fps)), optimize=False)
    return file.getvalue()


def _webp(reel: Reel, look: Look) -> bytes:
    Image = pillow().Image

    def convert(image: Any) -> Any:
        return image

    if look.colours is not None:
        palette = _palette_of(reel, look.colours)

        def convert(image: Any) -> Any:
            return image.quantize(palette=palette, dither=Image.Dither.NONE).convert("RGB")

    file = io.BytesIO()
    options: dict[str, Any] = {"lossless": True, "quality": 60, "method": 3, "minimize_size": False}
    if any(isinstance(stage, _PictureStage) for panel in reel.panels for stage in panel.takes):
        options = {"quality": 80, "method": 3}  # pictures from elsewhere may have many colours
    duration = _milliseconds(look)
    _lazy_sequence(reel, convert).save(file, "WEBP", save_all=True, loop=0, duration=duration, **options)
    return file.getvalue()


def _png(reel: Reel) -> bytes:
    file = io.BytesIO()
    reel.stills().save(file, "PNG", optimize=True)
    return file.getvalue()


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingEncoderError(f"MP4 films need imageio-ffmpeg: {INSTALL}; .webp and .gif do without") from error
    return imageio_ffmpeg


def _mp4(reel: Reel, look: Look) -> bytes:
    """H.264 in the pixel format that every player knows."""
    width, height = reel.size
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(look.fps), "-i", "-"]
    codec = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18", "-preset", "veryfast"]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "film.mp4"
        command = [_ffmpeg().get_ffmpeg_exe(), "-v", "error", *source, *codec, "-movflags", "+faststart", str(target)]
        # In a session of its own, Ctrl-C does not end the encoder before its input does.
        encoder = subprocess.Popen(
            command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert encoder.stdin is not None
        try:
            for i in range(len(reel)):
                encoder.stdin.write(reel[i].tobytes())
            _, said = encoder.communicate()
        except BrokenPipeError:
            said = encoder.stderr.read() if encoder.stderr else b""
        finally:
            encoder.kill()
            encoder.wait()
        if not target.is_file() or said:
            raise RunError(f"the film could not be encoded as MP4: {said.decode(errors='replace')[:300]}")
        return target.read_bytes()
