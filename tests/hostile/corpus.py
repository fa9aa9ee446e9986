"""Corruptions of run folders: at random, and crafted ones that aim at one promise each.

A corruption is a function of a folder, a folder outside of it, and a random generator. Checkpoints are changed both as
bytes, which breaks their seal, and as a forger would, who computes it anew.
"""

import hashlib
import io
import json
import os
import struct
import warnings
import zipfile

import numpy as np

SEAL = b"shoal sha256 "
BLANK = SEAL + b"0" * 64
NASTY = (
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, -0.5, float("nan"), float("inf"), "", "x", "NaN", "../../x"),
    *("/etc/passwd", "[/red]", "\x00\x1b[2J", "é" * 50, [], {}, [[]], [None], [1.5, "a"], {"a": 1}, [[1, 2], [3]]),
    *([0] * 3000, {"name": None}, [{}], {"": {}}, "nan", 1, 2, [1], "ppo", 123456789),
)
MANIFEST = "manifest.json"


def seal(content):
    """The bytes of a zip whose comment is blank, sealed."""
    assert content.endswith(BLANK)
    return content[: -len(BLANK)] + SEAL + hashlib.sha256(content).hexdigest().encode()


def pack(members, kind=zipfile.ZIP_STORED):
    """A sealed zip. members: pairs of a name and bytes, or of a `ZipInfo` and bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        archive.comment = BLANK
        for name, content in members:
            archive.writestr(name, content)
    return seal(out.getvalue())


def unpack(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def checkpoint_of(folder):
    return sorted((folder / "checkpoints").glob("step-*.npz"))[-1]


def forge(folder, change, path=None):
    """Writes the newest checkpoint anew, sealed, with its manifest changed."""
    path = path or checkpoint_of(folder)
    members = unpack(path)
    manifest = json.loads(members[MANIFEST])
    found = change(manifest)
    manifest = manifest if found is None else found
    members[MANIFEST] = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    path.write_bytes(pack(members.items()))


def forge_members(folder, change):
    """The same, with its members (a dict of bytes) changed."""
    path = checkpoint_of(folder)
    members = unpack(path)
    found = change(members)
    path.write_bytes(pack((members if found is None else found).items()))


def nodes(data, where=()):
    """All places in plain data, as containers and keys."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        yield data, key
        yield from nodes(value, (*where, key))


def mutate(data, random):
    """Changes one place of plain data; returns it."""
    places = list(nodes(data))
    if not places:
        return NASTY[random.integers(len(NASTY))]
    holder, key = places[random.integers(len(places))]
    what = random.integers(10)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder[key]
    elif what == 2 and isinstance(holder, list):
        holder.append(holder[key])
    elif what == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = holder[key] * 10 ** int(random.integers(1, 15))
    else:
        holder[key] = NASTY[random.integers(len(NASTY))]
    return data


def _flip(path, outside, random):
    content = bytearray(path.read_bytes() or b"x")
    for _ in range(random.integers(1, 8)):
        content[random.integers(len(content))] ^= 1 << random.integers(8)
    path.write_bytes(content)


def _cut(path, outside, random):
    content = path.read_bytes()
    path.write_bytes(content[: random.integers(len(content) + 1)])


def _noise(path, outside, random):
    content = path.read_bytes()
    place = random.integers(len(content) + 1)
    path.write_bytes(content[:place] + random.bytes(random.integers(1, 200)) + content[place:])


def _remove(path, outside, random):
    path.unlink()


def _link(path, outside, random):
    path.unlink()
    path.symlink_to(outside / "precious.txt" if random.integers(2) else outside / "nothing")


def _pipe(path, outside, random):
    path.unlink()
    os.mkfifo(path)


def _folder(path, outside, random):
    path.unlink()
    path.mkdir()


def _swap(path, outside, random):
    others = sorted(other for other in path.parent.parent.rglob("*") if other.is_file())
    path.write_bytes(others[random.integers(len(others))].read_bytes())


def _plain(path, outside, random):
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        number = random.integers(len(lines))
        lines[number] = json.dumps(mutate(json.loads(lines[number]), random))
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(json.dumps(mutate(json.loads(path.read_text()), random)))


def _manifest(path, outside, random):
    forge(None, lambda manifest: mutate(manifest, random), path)


def _meta(path, outside, random):
    def change(manifest):
        manifest["meta"] = mutate(manifest["meta"], random)

    forge(None, change, path)


def _member(path, outside, random):
    members = unpack(path)
    name = list(members)[random.integers(len(members))]
    content = bytearray(members[name])
    match random.integers(4):
        case 0:
            del members[name]
        case 1:
            members[name + "x"] = bytes(content)
        case 2:
            members[name] = bytes(content[: random.integers(len(content) + 1)])
        case _:
            for _ in range(4):
                content[random.integers(len(content))] = random.integers(256)
            members[name] = bytes(content)
    path.write_bytes(pack(members.items()))


RAW = (_flip, _cut, _noise, _remove, _link, _pipe, _folder, _swap)


def at_random(folder, outside, random):
    """One random corruption; returns what it was."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[random.integers(len(files))]
    sealed = path.suffix == ".npz"
    own = (_manifest, _meta, _meta, _member) if sealed else (_plain,) * 4
    ways = (*RAW, *own, *own, *own)
    way = ways[random.integers(len(ways))]
    way(path, outside, random)
    return f"{way.__name__} {path.relative_to(folder)}"


# ------------------------------------------------------------------------------------------------ crafted ones


def linked(name, target="precious.txt"):
    def change(folder, outside):
        path = folder / name
        if path.is_dir():
            path.rename(outside / f"was-{name}")
            target_path = outside / f"was-{name}"
        else:
            path.unlink(missing_ok=True)
            target_path = outside / target
        path.symlink_to(target_path)

    return change


def piped(name):
    def change(folder, outside):
        path = folder / name
        if path.is_dir():
            path.rename(outside / "moved")
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return change


def checkpoint_as(make):
    def change(folder, outside):
        path = checkpoint_of(folder)
        path.unlink()
        make(path, outside)

    return change


def written(name, content):
    raw = content.encode() if isinstance(content, str) else content

    def change(folder, outside):
        (folder / name).write_bytes(raw)

    return change


def sparse(name, size=1 << 34):
    def change(folder, outside):
        with open(folder / name, "wb") as file:
            file.truncate(size)

    return change


def config(*keys, value):
    """An entry of `config.json` replaced."""

    def change(folder, outside):
        data = json.loads((folder / "config.json").read_text())
        place = data
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        (folder / "config.json").write_text(json.dumps(data))

    return change


def status(*keys, value):
    """An entry of `cluster.json` replaced."""

    def change(folder, outside):
        data = json.loads((folder / "cluster.json").read_text())
        place = data
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        (folder / "cluster.json").write_text(json.dumps(data))

    return change


def manifest(change):
    return lambda folder, outside: forge(folder, change)


def meta(*keys, value=..., whole=...):
    """An entry of the meta data replaced, or removed."""

    def change(found):
        place = found["meta"]
        for key in keys[:-1]:
            place = place[key]
        if value is ...:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value

    def all_of_it(found):
        found["meta"] = whole

    return manifest(change if whole is ... else all_of_it)


def members(change):
    return lambda folder, outside: forge_members(folder, change)


def leaf(kind, **entries):
    """The first leaf of a kind (`array` or `key`) described otherwise."""

    def change(found):
        entry = next(entry for entry in found["leaves"] if (entry["key"] is None) == (kind == "array"))
        entry.update(entries)

    return manifest(change)


def compressed(kind):
    def change(folder, outside):
        path = checkpoint_of(folder)
        path.write_bytes(pack(unpack(path).items(), kind))

    return change


def bomb(which):
    """A member of gigabytes that takes megabytes: made of one block that is repeated."""

    def change(folder, outside):
        path = checkpoint_of(folder)
        found = unpack(path)
        name = MANIFEST if which == "manifest" else next(name for name in found if name != MANIFEST)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = BLANK
            for other, content in found.items():
                if other != name:
                    archive.writestr(other, content)
            with archive.open(_deflated(name), "w", force_zip64=True) as member:
                member.write(found[name][:64] if which == "array" else b'{"format": 1, "x": "')
                for _ in range(400):
                    member.write(b" " * (1 << 20))
        path.write_bytes(seal(out.getvalue()))

    return change


def _deflated(name):
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def header(offset, form, value, central=True):
    """A field of the zip's records changed, and the whole sealed anew: of all members at once."""

    def change(folder, outside):
        path = checkpoint_of(folder)
        content = bytearray(path.read_bytes())
        content[-len(BLANK) :] = BLANK
        mark = b"PK\x01\x02" if central else b"PK\x03\x04"
        place = content.find(mark)
        while place >= 0:
            struct.pack_into(form, content, place + offset, value)
            place = content.find(mark, place + 4)
        path.write_bytes(seal(bytes(content)))

    return change


def ending(offset, form, value):
    """The same, of the record at the end."""

    def change(folder, outside):
        path = checkpoint_of(folder)
        content = bytearray(path.read_bytes())
        content[-len(BLANK) :] = BLANK
        struct.pack_into(form, content, len(content) - len(BLANK) - 22 + offset, value)
        path.write_bytes(seal(bytes(content)))

    return change


def many_members(folder, outside):
    path = checkpoint_of(folder)
    found = list(unpack(path).items())
    path.write_bytes(pack([*found, *((f"x{i}", b"") for i in range(50_000))]))


def twice(folder, outside):
    path = checkpoint_of(folder)
    found = list(unpack(path).items())
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(out, "w") as archive:
            archive.comment = BLANK
            for name, content in [*found, found[0], found[-1]]:
                archive.writestr(name, content)
    path.write_bytes(seal(out.getvalue()))


def nan_weights(folder, outside):
    def change(found):
        for name, content in found.items():
            weights = "params" in name or name.startswith("banks")
            if weights and b"'descr': '<f4'" in content[:80]:
                start = content.index(b"\n") + 1
                size = (len(content) - start) // 4
                found[name] = content[:start] + np.full(size, np.nan, np.float32).tobytes()

    forge_members(folder, change)


def no_checkpoints(folder, outside):
    for path in (folder / "checkpoints").iterdir():
        path.unlink()


def npy(text):
    """The header of the first array replaced."""

    def change(found):
        name = next(name for name in found if name.endswith(".npy"))
        raw = text.encode()
        found[name] = b"\x93NUMPY\1\0" + struct.pack("<H", len(raw)) + raw + b"\0" * 64

    return members(change)


DEEP = "[" * 50_000 + "]" * 50_000
FILES = ("config.json", "metrics.jsonl", "checkpoints", "events", "curves.png", "replay.html")


def links():
    for name in FILES:
        yield "train", f"link {name}", linked(name)
        yield "train", f"pipe {name}", piped(name)
    for kind in ("evolve", "pbt", "psro", "league", "sweep"):
        for name in ("checkpoints", "metrics.jsonl", "config.json"):
            yield kind, f"link {name}", linked(name)
    for name in ("cluster.json", "journal.jsonl", "wanted.json"):
        yield "cluster", f"link {name}", linked(name)
        yield "cluster", f"pipe {name}", piped(name)
    for name in ("tasks", "tasks/journal.jsonl", "tasks/step-0000000005.npz", "cluster.json", "wanted.json"):
        yield "team", f"link {name}", linked(name)
        yield "team", f"pipe {name}", piped(name)
    yield "train", "checkpoint link", checkpoint_as(lambda path, outside: path.symlink_to(outside / "precious.txt"))
    yield "train", "checkpoint pipe", checkpoint_as(lambda path, outside: os.mkfifo(path))
    yield "train", "checkpoint folder", checkpoint_as(lambda path, outside: path.mkdir())
    yield "train", "checkpoint device", checkpoint_as(lambda path, outside: path.symlink_to("/dev/zero"))
    yield "train", "metrics device", linked("metrics.jsonl", "/dev/zero")
    yield "train", "config device", linked("config.json", "/dev/zero")


def archives():
    yield "train", "manifest bomb", bomb("manifest")
    yield "train", "array bomb", bomb("array")
    yield "psro", "array bomb", bomb("array")
    for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield "train", f"compressed {kind}", compressed(kind)
    yield "train", "unknown compression", header(10, "<H", 99)
    yield "train", "deflate that is none", header(10, "<H", 8)
    yield "train", "encrypted", header(8, "<H", 1)
    yield "train", "strongly encrypted", header(8, "<H", 0x41)
    yield "train", "patched data", header(8, "<H", 0x20)
    yield "train", "names in no encoding", header(8, "<H", 0x800)
    yield "train", "sizes of gigabytes", header(24, "<L", 0x7FFFFFFF)
    yield (
        "train",
        "both sizes of gigabytes",
        lambda folder, outside: (
            header(24, "<L", 0x7FFFFFFF)(folder, outside),
            header(20, "<L", 0x7FFFFFFF)(folder, outside),
        ),
    )
    yield "train", "zip64 sizes without any", header(24, "<L", 0xFFFFFFFF)
    yield "train", "all at one place", header(42, "<L", 0)
    yield "train", "far away", header(42, "<L", 0x7FFFFFFF)
    yield "train", "wrong checksums", header(16, "<L", 1)
    yield "train", "other local names", header(30, "<L", 1, central=False)
    yield "train", "long local names", header(26, "<H", 0xFFFF, central=False)
    yield "train", "a huge table of contents", ending(12, "<L", 0x7FFFFFFF)
    yield "train", "no table of contents", ending(12, "<L", 0)
    yield "train", "contents elsewhere", ending(16, "<L", 0x7FFFFFFF)
    yield "train", "many members", many_members
    yield "train", "members twice", twice
    yield "train", "an empty zip", lambda folder, outside: checkpoint_of(folder).write_bytes(pack([]))
    yield "train", "only a seal", lambda folder, outside: checkpoint_of(folder).write_bytes(seal(BLANK))
    yield "train", "no manifest", members(lambda found: {n: c for n, c in found.items() if n != MANIFEST})
    yield "train", "paths of members", members(lambda found: found | {"../../../evil": b"x", "/tmp/evil": b"x"})
    shape = "'fortran_order': False, 'shape': (1000000000000,), }\n"
    yield "train", "giant header", npy("{'descr': '<f4', " + shape)
    yield "train", "objects", npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }\n")
    yield "train", "code in a header", npy("__import__('os').system('touch /tmp/evil')\n")
    yield "train", "a deep header", npy("(" * 5000)
    yield "train", "a long header", npy("{'descr': '<f4', " + " " * 50_000 + shape)


def manifests():
    for value in (None, [], 3, "x", {}):
        yield "train", f"meta is {value!r}", meta(whole=value)
    yield "train", "no meta", manifest(lambda found: found.pop("meta") and None)
    for value in (None, [], [3], {}, [{}], [{"path": 1}], "x"):
        yield "train", f"leaves are {value!r}", manifest(lambda found, value=value: found.update(leaves=value))
    for value in (None, "1", 1.5, True, 10**30, -1):
        yield "train", f"format {value!r}", manifest(lambda found, value=value: found.update(format=value))
    for value in ([10**12], [-1], [True], [1.5], ["x"], None, [1] * 100, [2**62, 0], "x"):
        yield "train", f"shape {str(value)[:20]}", leaf("array", shape=value)
    for value in ("O", "V8", "(2,)f4", "f4,f4", "datetime64[s]", "U5", "object", None, 3, "", "x" * 10_000, "float64"):
        yield "train", f"dtype {str(value)[:20]}", leaf("array", dtype=value)
    for value in ("", "x", "rbg", 3, ["threefry2x32"], "threefry2x32 "):
        yield "train", f"key {value!r}", leaf("key", key=value)
    yield "train", "key of another shape", leaf("key", shape=[3])
    yield "train", "key that is none", leaf("array", key="threefry2x32")
    yield "train", "deep manifest", manifest(lambda found: DEEP.encode())

    def deep(found):
        return json.dumps(found | {"meta": 0}).replace('"meta": 0', f'"meta": {DEEP}').encode()

    yield "train", "deep meta", manifest(deep)
    yield "train", "manifest of lists", manifest(lambda found: b"[" + b"[]," * 7_000_000 + b"[]]")


def progress():
    values = (None, "x", -1, 10**30, float("inf"), [], True)
    for key in ("update", "env_steps", "devices", "seconds", "pending"):
        yield "train", f"no {key}", meta(key)
        for value in values:
            yield "train", f"{key} {value!r}", meta(key, value=value)
    for value in ([[1.0]], [["x"]], [[1e999]], [[[]]], [{}], [1], {"count": 2}, {"count": 2, "sums": [1]}):
        for kind in ("train", "pbt", "evolve", "cluster", "sweep"):
            yield kind, f"pending {value!r}", meta("pending", value=value)
    for key in ("update", "devices", "env_steps"):
        for kind in ("evolve", "pbt", "cluster"):
            yield kind, f"{key} text", meta(key, value="3")
    for value in (None, {}, [], {"member": 9, "scores": [1], "values": {}}, {"member": 0, "scores": "x", "values": 1}):
        yield "pbt", f"standing {value!r}", meta("pbt", value=value)
    for value in ([], [9] * 4, "x", [0, 1], [-1] * 4, None):
        yield "pbt", f"lineage {value!r}", meta("lineage", value=value)
    for kind in ("train", "evolve", "psro", "league", "cluster"):
        yield kind, "nan weights", nan_weights
    for text in ('{"update": 2, "env_steps": 8}', '{"update": 2, "env_steps": 8, "episodes": 3}', ""):
        yield "sweep", f"metrics {text}", written("metrics.jsonl", text + "\n")
    for value in (None, {}, {"over": {}}, {"over": {"learning_rate": "x"}}, {"over": {"learning_rate": [1e999]}}):
        yield "sweep", f"plan {value!r}", config("sweep", value=value)
    for kind in ("train", "evolve", "pbt", "psro", "league", "cluster", "sweep"):
        yield kind, "no checkpoints", no_checkpoints


def populations():
    first = "members"
    for kind in ("psro", "league", "exact"):
        for key in ("members", "history", "mixtures", "capacities", "symmetric"):
            yield kind, f"no {key}", meta(key)
            for value in (None, [], {}, "x", 3, [[]], {"a": []}):
                yield kind, f"{key} {value!r}", meta(key, value=value)
        yield kind, "empty history", meta("history", value=[])
        for key in ("iteration", "seconds", "population"):
            yield kind, f"history without {key}", meta("history", 0, key)
            yield kind, f"history {key} text", meta("history", -1, key, value="x")
        yield kind, "iteration of the future", meta("history", -1, "iteration", value=10**30)
        yield kind, "gain of one", meta("history", -1, "gain", value=[0.5])
    yield "psro", "many players", meta(first, value={f"p{i}": [{"name": "0"}] * 3 for i in range(60)})

    def member(key, value):
        def change(found):
            next(iter(found["meta"][first].values()))[-1][key] = value

        return manifest(change)

    for key, value in (("parent", 99), ("parent", "x"), ("born", -1), ("name", 3), ("info", []), ("frozen", "x")):
        yield "psro", f"member {key} {value!r}", member(key, value)
    for value in ({"role": "boss"}, {"role": 3}, {"age": "x"}, {"earned": "x"}, {"age": -1}, {"mixture": "x"}):
        yield "league", f"info {value!r}", member("info", value)

    def all_frozen(found):
        for own in found["meta"][first].values():
            for one in own:
                one["frozen"] = True

    def no_mains(found):
        for own in found["meta"][first].values():
            for one in own:
                one["info"] = {"role": "league_exploiter"}

    yield "league", "all frozen", manifest(all_frozen)
    yield "league", "no main agent", manifest(no_mains)
    for value in ([[2.0, -1.0]] * 2, [[0.5, 0.5]], [[1.0], [1.0]], [[0.5, "x"]] * 2, [[0.0, 0.0]] * 2):
        yield "psro", f"mixtures {value!r}", meta("mixtures", value=value)
    yield (
        "psro",
        "giant capacity",
        manifest(lambda found: found["meta"].update(capacities=dict.fromkeys(found["meta"]["capacities"], 10**12))),
    )


def plain_files():
    for kind in ("train", "psro"):
        yield kind, "deep config", written("config.json", DEEP)
        yield kind, "sparse config", sparse("config.json")
        yield kind, "deep entry", written("config.json", '{"format": 1, "experiment": ' + DEEP + "}")
        yield kind, "config of lists", written("config.json", "[" + "[]," * 5_000_000 + "[]]")
    yield "train", "deep metrics", written("metrics.jsonl", DEEP)
    yield "train", "sparse metrics", sparse("metrics.jsonl")
    yield "train", "long line", written("metrics.jsonl", '{"update": 1, "x": "' + "a" * (1 << 24) + '"}\n')
    for text in ('{"update": 1}', '{"update": 1, "env_steps": "x"}', '{"update": true, "env_steps": 1}'):
        yield "train", f"metrics {text}", written("metrics.jsonl", text + "\n")
    for text in ('{"update": 1, "env_steps": 1e999}', '{"update": 1, "env_steps": 1, "return/a": {"b": 1}}'):
        yield "train", f"metrics {text}", written("metrics.jsonl", text + "\n")
    for value in ("x", None, -1, 10**30, 1e999, True, [], {}):
        for key in ("num_envs", "total_env_steps", "seed"):
            yield "train", f"{key} {str(value)[:9]}", config("experiment", key, value=value)
    for value in (None, [], 3, {"x": 1}, "[/red]", "../../etc", "a" * 10_000):
        yield "train", f"env {str(value)[:9]}", config("experiment", "env", value=value)
    for kind, key in (("evolve", "evolution"), ("pbt", "pbt")):
        for value in (None, {}, {"strategy": {}}, {"over": {}}, {"population": "x", "strategy": {"name": "open_es"}}):
            yield kind, f"{key} {value!r}", config(key, value=value)
    for key in ("generations", "population", "episodes", "max_steps"):
        yield "evolve", f"{key} giant", config("evolution", key, value=10**18)
        yield "evolve", f"{key} text", config("evolution", key, value="x")
    for key in ("members", "interval", "fraction", "factor"):
        yield "pbt", f"{key} giant", config("pbt", key, value=10**18)
        yield "pbt", f"{key} text", config("pbt", key, value="x")


def clusters():
    for value in (None, [], "x", {}, {"recipe": "x"}, {"actors": -1}, {"actors": "x"}, {"learners": 10**30}):
        yield "cluster", f"plan {value!r}", config("cluster", value=value)
        yield "cluster", f"status plan {value!r}", status("plan", value=value)
    for key in ("workers", "learner", "services", "staleness", "events", "restarts", "running", "copies", "env"):
        for value in (None, [], "x", {"actor-0": 3}, [{}], -1):
            yield "cluster", f"status {key} {value!r}", status(key, value=value)
    for key in ("seconds", "rounds", "task", "slow", "quarantined", "restarts"):
        yield "cluster", f"worker {key}", status("workers", "actor-0", key, value=[{}])
    for kind in ("cluster", "team"):
        for name in ("cluster.json", "wanted.json", "journal.jsonl", "tasks/journal.jsonl"):
            if name.startswith("tasks") and kind == "cluster":
                continue
            yield kind, f"deep {name}", written(name, DEEP)
            yield kind, f"sparse {name}", sparse(name)
    for value in (None, [], {"workers": -1}, {"workers": "x"}, {"x": 1}, {"workers": 10**30}):
        yield "team", f"team {value!r}", status("team", value=value)
    for text in ('{"done": 3}', '{"done": "a"}', '{"done": "a", "figures": 1}', '{"forgot": 3}', '{"forgot": [[]]}'):
        yield "team", f"journal {text}", written("tasks/journal.jsonl", text + "\n")
    for text in ('{"done": "a", "figures": {}, "file": "x"}', '{"done": "a", "figures": {}, "file": -1}'):
        yield "team", f"journal {text}", written("tasks/journal.jsonl", text + "\n")
    for text in ('{"begun": 3, "times": 1}', '{"begun": "a"}', '{"begun": "a", "times": "x"}', '{"begun": []}'):
        yield "cluster", f"journal {text}", written("journal.jsonl", text + "\n")
    for text in ('{"workers": 1e30}', '{"workers": "x"}', "[]", '{"workers": 99999999999}', "3"):
        yield "team", f"wanted {text}", written("wanted.json", text)


def crafted():
    """All of them: a kind of run, what it is, and what makes it of a folder."""
    for group in (links, archives, manifests, progress, populations, plain_files, clusters):
        yield from group()
