"""Files of a run folder: regular ones only, never half there, and never more in memory than they should be."""

import os

import pytest

from shoal.core import files
from shoal.core.errors import RunError
from shoal.core.schema import Maybe, Whole, check


def place(kind, path, outside):
    """Puts something that is no regular file at a path."""
    match kind:
        case "link":
            outside.write_text("precious")
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(outside)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "xb"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path, kind, mode):
    path, outside = tmp_path / "run.json", tmp_path / "outside"
    place(kind, path, outside)
    with pytest.raises(RunError, match=r"run\.json is a .* must be a regular file"):
        files.open_file(path, mode)
    assert not outside.exists() or outside.read_text() == "precious"


def test_a_link_that_appears_at_the_last_moment_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(files, "_check_link", lambda path: None)
    with pytest.raises(OSError, match="symbolic links"):
        files.open_file(tmp_path / "file", "wb")
    assert (tmp_path / "outside").read_text() == "precious"


def test_a_pipe_that_appears_at_the_last_moment_does_not_hang(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "file")
    monkeypatch.setattr(files, "_check_link", lambda path: None)
    with pytest.raises(RunError, match="is a pipe"):
        files.open_file(tmp_path / "file", "rb")


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_file_with_a_second_name_is_read_and_not_written(tmp_path, mode):
    (tmp_path / "outside").write_text("precious")
    os.link(tmp_path / "outside", tmp_path / "file")
    assert files.read_file(tmp_path / "file") == b"precious"
    with pytest.raises(RunError, match="another name too"):
        files.open_file(tmp_path / "file", mode)
    assert (tmp_path / "outside").read_text() == "precious"


def test_modes_do_what_their_names_say(tmp_path):
    path = tmp_path / "file"
    for mode, text in (("xb", b"one"), ("ab", b" two")):
        with files.open_file(path, mode) as file:
            file.write(text)
    assert files.read_file(path) == b"one two"
    with files.open_file(path, "wb") as file:
        file.write(b"new")
    assert files.read_file(path) == b"new"
    with pytest.raises(FileExistsError):
        files.open_file(path, "xb")
    with pytest.raises(FileNotFoundError):
        files.open_file(tmp_path / "nothing", "rb")


def test_folders_of_a_run_are_folders(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    assert files.check_folder(tmp_path / "real")
    assert not files.check_folder(tmp_path / "nothing")
    for name, what in (("link", "a link"), ("file", "a file")):
        with pytest.raises(RunError, match=f"{name} is {what}, and must be a folder"):
            files.make_folder(tmp_path / name)


def test_a_trap_where_the_partial_file_will_be(tmp_path):
    (tmp_path / "outside").write_text("precious")
    (tmp_path / f".file.{os.getpid()}.partial").symlink_to(tmp_path / "outside")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    files.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "outside").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "outside"]


def test_large_files_are_refused_before_they_are_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunError, match="too large to be what it should be"):
        files.read_json(tmp_path / "sparse")
    with pytest.raises(RunError, match="too large to be what it should be"):
        list(files.read_lines(tmp_path / "sparse"))
    (tmp_path / "line").write_bytes(b" " * (files.MOST_LINE + 1) + b"{}\n")
    with pytest.raises(RunError, match="is too large"):
        list(files.read_lines(tmp_path / "line"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" + "[]," * 6_000_000 + "[]]", "too many parts"),
        ("{", "Expecting"),
        ("\xff", "Expecting"),
        ("9" * 5000, "integer string"),
    ],
)
def test_json_that_would_fill_memory_or_the_stack(text, words):
    with pytest.raises(ValueError, match=words):
        files.parse_json(text)


def test_what_is_no_text_is_not_shown():
    with pytest.raises(ValueError, match="it is not text") as caught:
        files.parse_json(b'{"a": "' + b"x" * 10_000 + b'\xff"}')
    assert len(repr(caught.value)) < 100


def test_numbers_that_are_not_finite():
    assert files.parse_json('{"x": [1e999]}') == {"x": [float("inf")]}
    for text in ("NaN", "[1e999]", '{"a": -Infinity}'):
        with pytest.raises(ValueError, match="not finite"):
            files.parse_json(text, finite=True)


def test_lines_end_at_the_first_that_is_no_object(tmp_path):
    path = tmp_path / "lines"
    for bad in ("[1]", "{", "", "NaN", "\udcff", "[" * 5000):
        path.write_text(f'{{"a": 1}}\n{{"a": 2}}\n{bad}\n{{"a": 3}}\n', errors="surrogateescape")
        assert list(files.read_lines(path)) == [{"a": 1}, {"a": 2}]


def test_many_small_lines_do_not_add_up_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_COST", 100_000)
    (tmp_path / "lines").write_text('{"a": [[], [], []]}\n' * 1000)
    with pytest.raises(RunError, match="is too large"):
        list(files.read_lines(tmp_path / "lines"))


SPEC = {"update": Whole(0, 9), "seconds": float, "name?": Maybe(str), "rows": [[float]], "by": {str: bool}}
FINE = {"update": 3, "seconds": 1, "rows": [[0.5, 2]], "by": {"a": True}, "more": object()}


@pytest.mark.parametrize("change", [{}, {"name": None}, {"name": "x"}, {"rows": []}, {"by": {}}])
def test_what_fits_a_schema(change):
    check(FINE | change, SPEC, "meta")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"update": 10}, "meta.update must be between 0 and 9, got 10"),
        ({"update": True}, "meta.update must be a whole number, got True"),
        ({"update": 3.0}, "meta.update must be a whole number, got 3.0"),
        ({"update": 10**400}, "meta.update must be between"),
        ({"seconds": float("nan")}, "meta.seconds must be a finite number, got nan"),
        ({"seconds": "1"}, "meta.seconds must be a number, got '1'"),
        ({"seconds": 10**400}, "meta.seconds must be a finite number"),
        ({"name": 3}, "meta.name must be a text"),
        ({"rows": {}}, "meta.rows must be a list, got a dict"),
        ({"rows": [[1], [None]]}, r"meta.rows\[1\]\[0\] must be a number, got None"),
        ({"by": {"a": 1}}, "meta.by.a must be true or false, got 1"),
        ({"by": [1]}, "meta.by must be a mapping, got a list"),
    ],
)
def test_what_does_not_fit_is_named_in_one_short_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        check(FINE | change, SPEC, "meta")
    assert len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="meta has no entry 'seconds'"):
        check({"update": 1}, SPEC, "meta")
    with pytest.raises(ValueError, match="meta must be a mapping, got a list"):
        check([], SPEC, "meta")
