"""Writes the small films of the gallery of `shoal ui` from those of the worlds' pages: `python docs/build_gallery.py`.

They ship with the package, so all of them together stay below `MOST_BYTES`: fewer, smaller frames of the same episodes.
"""

from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "worlds" / "images"
TARGET = ROOT / "src" / "shoal" / "ui" / "static" / "worlds"
SIZE = 224, 168
FRAMES = 24
MOST_EACH = 9_300
MOST_BYTES = 290_000


def main() -> None:
    """Writes a film for every world that has one."""
    TARGET.mkdir(exist_ok=True)
    for path in sorted(SOURCE.glob("*.webp")):
        write_film(path, TARGET / path.name)
    total = sum(path.stat().st_size for path in TARGET.glob("*.webp"))
    assert total <= MOST_BYTES, f"the films have {total} bytes together, at most {MOST_BYTES} are allowed"
    print(f"{total} bytes in {TARGET}")


def write_film(source: Path, target: Path) -> None:
    """A small film of evenly spaced frames, in the best quality that fits."""
    with Image.open(source) as film:
        frames = [
            (fitted(frame.convert("RGB")), frame.info.get("duration", 60)) for frame in ImageSequence.Iterator(film)
        ]
    length = sum(duration for _, duration in frames)
    for number, quality in (
        (FRAMES, 92),
        (FRAMES, 84),
        (FRAMES, 75),
        (FRAMES, 60),
        (FRAMES, 45),
        (16, 35),
        (12, 25),
        (8, 15),
        (5, 5),
    ):
        chosen = frames[:: -(-len(frames) // number)]
        options: dict[str, Any] = {
            "duration": max(round(length / len(chosen)), 40),
            "loop": 0,
            "quality": quality,
            "method": 6,
        }
        first, *rest = [frame for frame, _ in chosen]
        first.save(target, save_all=True, append_images=rest, minimize_size=True, allow_mixed=True, **options)
        if target.stat().st_size <= MOST_EACH:
            return
    raise AssertionError(f"{source.name} does not fit into {MOST_EACH} bytes")


def fitted(frame: Image.Image) -> Image.Image:
    """The frame at the size of a card, on ground of its own colour."""
    ground = Image.new("RGB", SIZE, frame.getpixel((0, 0)))  # pyright: ignore[reportArgumentType]
    frame.thumbnail(SIZE, Image.Resampling.LANCZOS)
    ground.paste(frame, ((SIZE[0] - frame.width) // 2, (SIZE[1] - frame.height) // 2))
    return ground


if __name__ == "__main__":
    main()
