"""Hostile changes to folders: links out of them, pipes, sockets, strange names, sparse files."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from tests.fuzz.byte_damage import damaged
from tests.fuzz.canary import PIPE, SOCKET
from tests.fuzz.mutation_context import Scene

_NAMES = (
    "a\x1b[2Jb",
    "\x1b]0;owned\x07",
    "new\nline: all is well",
    "\u202egol.elosnoc",
    "\x9b31m",
    b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),
    "<img src=x onerror=alert(1)>",
    "=HYPERLINK(1)",
    "[red]x[bold",
    "é" * 100,
    "-rf",
    " ",
    "..box",
    "%s%n",
    "a" * 240,
)
SPARSE = (1 << 20, 200 << 20, 8 << 30, 1 << 40)
_HOLE = bytes(4096)
_KINDS = ("link", "pipe", "socket", "folder", "sparse", "empty", "device", "unreadable", "loop")


def replaced(scene: Scene) -> str:
    """Something else stands where a file or folder was."""
    rng = scene.rng
    places = _inside(scene)
    if not places:
        return "nothing to replace"
    path = rng.choice(places)
    twin = scene.beside(path)
    kind = rng.choice(_KINDS)
    was_folder = path.is_dir()
    if kind == "unreadable":
        path.chmod(0)
        return f"{path.name} has mode 0"
    _remove(path)
    if kind == "link":
        target = rng.choice((twin, twin, Path(os.path.relpath(twin, path.parent)), _canary(scene)))
        path.symlink_to(target)
        return f"{path.name} is a link to {target}"
    if kind == "loop":
        path.symlink_to(rng.choice((path.name, ".", "..", "/")))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        bind(path)
    elif kind == "device":
        path.symlink_to(rng.choice(("/dev/zero", "/dev/stdin", "/dev/tty", "/proc/self/mem")))
    elif kind == "folder":
        (path / "inner").mkdir(parents=True)
    elif kind == "sparse" or was_folder:
        with open(path, "wb") as file:
            file.truncate(rng.choice(SPARSE))
    else:
        path.write_bytes(b"")
    return f"{path.name} became: {kind}"


def linked_inside(scene: Scene) -> str:
    """A path of the subject leads through a folder that is a link, or hard links are many."""
    rng = scene.rng
    path = scene.file()
    if path is None or path == scene.subject:
        return "nothing to link"
    kind = rng.randrange(3)
    if kind == 0:
        count = rng.choice((2, 50, 400))
        for number in range(count):
            os.link(path, path.with_name(f"{number}-{path.name}"))
        return f"{count} hard links to {path.name}"
    if kind == 1:
        folder = path.parent
        if folder == scene.subject:
            folder = scene.subject / "moved"
            folder.mkdir()
        away = scene.subject.with_name("away")
        folder.rename(away)
        folder.symlink_to(away)
        return f"{folder.name} is a link to a folder beside the subject"
    new = path.with_name(f"more-{path.name}")
    new.symlink_to(scene.beside(path))
    return f"{new.name} is a link to {scene.beside(path)}"


def more_files(scene: Scene) -> str:
    """Copies and strangers among the files, under strange names."""
    rng = scene.rng
    path = scene.file()
    if path is None or path == scene.subject:
        return "no folder to put files into"
    folder = rng.choice((path.parent, path.parent, scene.subject))
    made = []
    for _ in range(rng.choice((1, 3))):
        name = rng.choice((*_NAMES, f"{rng.choice(_NAMES)[:60]}{path.suffix}", path.name + ".1"))
        new = folder / name
        if not os.path.lexists(new):
            new.write_bytes(
                damaged(path.read_bytes(), rng) if rng.random() < 0.5 else path.read_bytes()
            )
            made.append(name)
    if rng.random() < 0.2:
        count = rng.choice((300, 2000))
        for number in range(count):
            (folder / f"{number}{path.suffix}").write_bytes(b"{}\n")
        made.append(f"{count} of two bytes")
    return f"beside {path.name}: {made!r}"


def renamed(scene: Scene) -> str:
    """A file or folder has a strange name."""
    rng = scene.rng
    places = _inside(scene)
    if not places:
        return "nothing to rename"
    path = rng.choice(places)
    name = rng.choice(_NAMES)
    new = path.with_name(name if rng.random() < 0.5 else f"{name[:60]}{path.suffix}")
    if not os.path.lexists(new):
        path.rename(new)
    return f"{path.name} is now {new.name!r}"


def swapped(scene: Scene) -> str:
    """Two files have changed places, or one is gone."""
    rng = scene.rng
    files = scene.files()
    if len(files) < 2:
        return "too few files"
    first, second = rng.sample(files, 2)
    if rng.random() < 0.4:
        first.unlink()
        return f"{first.name} is gone"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    if rng.random() < 0.5:
        second.write_bytes(content)
    return f"{first.name} holds what {second.name} held"


def deep(scene: Scene) -> str:
    """Folders in folders, or very many of them."""
    rng = scene.rng
    if not scene.subject.is_dir():
        return "no folder"
    folder = rng.choice([scene.subject, *(one for one in _inside(scene) if one.is_dir())])
    if rng.random() < 0.5:
        for _ in range(60):
            folder = folder / "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        return "60 folders in each other"
    count = rng.choice((300, 3000))
    for number in range(count):
        (folder / f"n{number}").mkdir(exist_ok=True)
    return f"{count} folders in {folder.name}"


def write_sparse(path: Path, raw: bytes) -> None:
    """With holes where the bytes are zero, so that copies cost little."""
    with open(path, "wb") as file:
        file.truncate(len(raw))
        for at in range(0, len(raw), len(_HOLE)):
            page = raw[at : at + len(_HOLE)]
            if page != _HOLE:
                file.seek(at)
                file.write(page)


def bind(path: Path) -> None:
    """Leaves a unix socket there."""
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a unix socket is 107 bytes at most
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path.name[:90])
    os.chdir(here)


def _inside(scene: Scene) -> list[Path]:
    """Files and folders below the subject."""
    if not scene.subject.is_dir():
        return []
    return sorted(path for path in scene.subject.rglob("*") if not path.is_symlink())


def _canary(scene: Scene) -> Path:
    folder = scene.canary.folder
    return scene.rng.choice((folder, folder / "secret.txt", folder / PIPE, folder / SOCKET))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
