"""Suites and what they need, by the ordinary clients of the registries, pinned by version; kept below $SUITES_STORE, else .run/suites.

# Invariants  nothing of it is committed; what is there already is not fetched again; what cannot be had is `Missing`, with its reason
"""

import collections
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import threading
import time

from places import ROOT, Missing

STORE = pathlib.Path(os.environ.get("SUITES_STORE", ROOT / ".run/suites"))
SECONDS_MAX = 600
# Before each attempt: registries have bad moments.
PAUSES = (0, 10)
_one = threading.Lock()
# By name, while it is made.
MAKING = collections.defaultdict(threading.Lock)


def call(command, directory=None, environment=None):
    """What a client of a registry printed; Missing with its last words."""
    if shutil.which(command[0]) is None:
        raise Missing(f"{command[0]} is not installed")
    for pause in PAUSES:
        time.sleep(pause)
        try:
            done = subprocess.run(list(map(str, command)), cwd=directory, env={**os.environ, **(environment or {})},
                                  stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Missing(f"{' '.join(map(str, command[:4]))}: not done after {SECONDS_MAX} s") from None
        if not done.returncode:
            return done.stdout
    said = (done.stderr or done.stdout).strip().splitlines()
    raise Missing(f"{' '.join(map(str, command[:4]))}: {' '.join(said[-3:])[-400:]}")


def kept(name, make):
    """The directory `name` of the store, made by `make(directory)` the first time. A half-made one is made again."""
    directory = STORE / name
    # Suites that are fetched at the same time may need the same.
    with MAKING[name]:
        if not (directory / ".complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            make(directory)
            (directory / ".complete").touch()
    return directory


def unpack(archive, directory):
    """Without the archive's own top directory."""
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "unpacked", filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(directory / "unpacked")
    top = next((directory / "unpacked").iterdir())
    for path in top.iterdir():
        path.rename(directory / path.name)
    shutil.rmtree(directory / "unpacked")


def wheels(name, requirements):
    """A directory for PYTHONPATH with these packages."""
    def make(directory):
        call([sys.executable, "-m", "pip", "install", "-q", "--root-user-action=ignore", "--disable-pip-version-check", "--target",
              directory, *requirements])
    return kept(f"{name}-packages", make)


def sdist(package, version):
    """The unpacked source distribution."""
    def make(directory):
        # pip asks a source distribution for its metadata before it keeps it, by the build system that it names.
        call([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", package,
              "-d", directory,
              f"{package}=={version}"])
        unpack(next(directory.glob("*.tar.gz")), directory)
    return kept(f"{package}-{version}", make)


def go_module(path, version):
    """A copy that can be written to, of what the module cache has."""
    def make(directory):
        import json
        found = json.loads(call(["go", "mod", "download", "-json", f"{path}@{version}"], directory.parent))
        shutil.copytree(found["Dir"], directory, dirs_exist_ok=True)
        for each in (directory, *directory.rglob("*")):
            each.chmod(each.stat().st_mode | 0o200)
        call(["go", "mod", "download"], directory)
    return kept(f"{path.replace('/', '-')}-{version}", make)


def crate(name, version):
    """A copy of the crate's own directory, from cargo's cache."""
    def make(directory):
        import json
        asks = directory / "asks"
        (asks / "src").mkdir(parents=True)
        (asks / "src/lib.rs").touch()
        (asks / "Cargo.toml").write_text(f'[workspace]\n[package]\nname = "asks"\nversion = "0.0.0"\nedition = '
                                         f'"2024"\n[dependencies]\n{name} = "={version}"\n')
        call(["cargo", "fetch", "-q"], asks)
        known = json.loads(call(["cargo", "metadata", "--format-version", "1", "-q"], asks))
        manifest = next(package["manifest_path"] for package in known["packages"] if package["name"] == name)
        shutil.copytree(pathlib.Path(manifest).parent, directory, dirs_exist_ok=True)
        shutil.rmtree(asks)
    return kept(f"{name}-{version}", make)


def maven_archive(coordinates, name):
    """An archive that Maven Central has beside a jar (GROUP:ARTIFACT:VERSION:TYPE:CLASSIFIER), unpacked."""
    def make(directory):
        with _one:  # Maven's own repository takes one writer
            call(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={directory}"])
        unpack(next(directory.glob("*.tar.gz")), directory)
    return kept(name, make)
