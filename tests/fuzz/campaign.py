"""Many mutated inputs, one after the other: each is made, examined in several views and judged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz import corpus, isolated_runs, promise_checks, reading_commands
from tests.fuzz.canary import Canary
from tests.fuzz.mutation_context import Scene
from tests.fuzz.mutations import mutate
from tests.fuzz.reading_commands import View

NOTHING_EXAMINED = 3
VARIABLES = ("MGPU_DOCTOR_KEEP", "XDG_STATE_HOME", "NO_COLOR", "COLUMNS", "TERM", "PYTHONWARNINGS")
"""Of this process's environment, which the command line would heed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What one input did wrong. `kind`: the same for all inputs that show one bug."""

    format: str
    seed: int
    index: int
    view: str
    fault: str
    change: str

    @property
    def kind(self) -> str:
        told = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "…", self.fault)
        return f"{self.format}: {re.sub(r'[0-9]+', 'N', told)[:160]}"

    @property
    def command(self) -> str:
        return (
            f"python -m tests.fuzz --format {self.format} --seed {self.seed} "
            f"--index {self.index} --views {self.view}"
        )


@dataclass
class Campaign:
    """The inputs of one format and seed, in a folder of their own. `wanted`: how many views of each
    input, None for all, or the name of one."""

    format: str
    seed: int
    folder: Path
    wanted: int | str | None = 2
    kept: Path | None = None
    """Where inputs that failed are kept."""
    codes: Counter[int | None] = field(default_factory=Counter)
    """How often commands ended by each exit code; None: by a signal."""
    _known: set[str] = field(default_factory=set)
    _baselines: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._masters = self.folder / "masters"
        self._seeds = corpus.seeds(self.format)
        self._canary = Canary(self.folder / "outside")
        self._trial = self.folder / "trial"
        self._honest = self.folder / "honest"
        wrong = isolated_runs.apart(lambda: corpus.unpacked(self._honest))
        assert wrong is None, wrong
        os.environ["MGPU_DOCTOR_HOME"] = str(self._trial / "home")
        os.environ["HOME"] = str(self._trial / "home")
        for name in VARIABLES:
            os.environ.pop(name, None)

    def close(self) -> None:
        self._canary.close()
        _remove(self.folder)

    def examine(self, index: int) -> list[Fault]:
        """Makes one input, and says what it did wrong."""
        rng = Random(f"{self.format} {self.seed} {index}")
        seed = rng.choice(self._seeds)
        self._master(seed)
        wrong = isolated_runs.apart(lambda: self._mutate(seed, index, rng))
        self._canary.touched()  # by the mutation
        if wrong is not None:
            return [Fault(self.format, self.seed, index, "all", f"fuzzer: {wrong}", "")]
        change = f"{seed.name}: {(self._trial / 'change').read_text('utf-8', 'replace')}"
        found = []
        for view in self._views(index):
            for fault in self._faults(view, self._subject(seed), self._baseline(view)):
                found.append(Fault(self.format, self.seed, index, view.name, fault, change))
        if found and self.kept is not None:
            self._keep(found, self._subject(seed))
        return found

    def honest(self, number: int) -> list[Fault]:
        """What is wrong with a seed itself. If it does not pass, or is not examined, the fuzzer is
        wrong."""
        seed = self._seeds[number]
        if self.format == "boxes" and seed.name in {one.name for one in corpus.seeds("recordings")}:
            return []  # the same, in the same views
        self._place(seed)
        self._canary.touched()  # by making it
        subject = self._subject(seed)
        found = []
        for view in self._views(number):
            if view.typed and not subject.is_file():
                continue
            before = self.codes[NOTHING_EXAMINED]
            baseline = self._baseline(view) if number else None
            faults = self._faults(view, subject, baseline)
            if self.codes[NOTHING_EXAMINED] > before and view.words[0] == "diagnose":
                faults.append("fuzzer: the honest input was not examined")
            for fault in faults:
                found.append(Fault(self.format, self.seed, number, view.name, fault, seed.name))
        return found

    def _views(self, index: int) -> tuple[View, ...]:
        if isinstance(self.wanted, str):
            return tuple(
                one for one in reading_commands.VIEWS[self.format] if one.name == self.wanted
            )
        return reading_commands.chosen(self.format, index, Random(index), self.wanted)

    def _master(self, seed: corpus.Seed) -> Path:
        """The honest input. The first time it is made, and a twin of it outside, for links to point
        to."""
        master = self._masters / seed.name / seed.file
        if not master.exists():
            wrong = isolated_runs.apart(lambda: self._make(seed))
            assert wrong is None, wrong
            self._canary.watch(sorted(_all_below(self._canary.folder / seed.name)))
        return master

    def _make(self, seed: corpus.Seed) -> None:
        for place in (self._masters / seed.name, self._canary.folder / seed.name):
            place.mkdir(parents=True)
            seed.make(place / seed.file)
        corpus.mark(self._canary.folder / seed.name / seed.file)

    def _mutate(self, seed: corpus.Seed, index: int, rng: Random) -> None:
        self._place(seed)
        subject = self._subject(seed)
        twin = self._canary.folder / seed.name / seed.file
        change = mutate(self.format, index, Scene(subject, twin, self._canary, rng))
        (self._trial / "change").write_text(change, "utf-8", "backslashreplace")

    def _place(self, seed: corpus.Seed) -> None:
        """The honest input where the command will find it."""
        _remove(self._trial)
        subject = self._subject(seed)
        subject.parent.mkdir(parents=True)
        corpus.copied(self._master(seed), subject)

    def _subject(self, seed: corpus.Seed) -> Path:
        return self._trial / "home/runs" / seed.file

    def _faults(self, view: View, subject: Path, baseline: int | None) -> list[str]:
        """What it did wrong; without a baseline it is the baseline."""
        ended, out = self._run(view, subject)
        self.codes[ended.code] += 1
        if baseline is None:
            baseline = self._baselines[view.name] = ended.peak
        return promise_checks.faults(view, ended, baseline, out, self._canary.touched())

    def _baseline(self, view: View) -> int:
        """The peak of memory of a view of the first seed, honest."""
        if view.name not in self._baselines:
            first = self._seeds[0]
            ended, _ = self._run(view, self._master(first))
            self._canary.touched()
            self._baselines[view.name] = ended.peak
        return self._baselines[view.name]

    def _run(self, view: View, subject: Path) -> tuple[isolated_runs.Ended, Path]:
        out, streams = self._trial / "out", self._trial / "streams"
        for folder in (out, streams):
            _remove(folder)
            folder.mkdir(parents=True)
        names = {"subject": str(subject), "honest": str(self._honest), "out": str(out)}
        words = [word.format(**names) for word in view.words]
        typed = subject if view.typed and subject.is_file() else None
        os.chdir(out)
        try:
            return isolated_runs.run(words, streams, (out, streams), typed), out
        finally:
            os.chdir(self.folder)

    def _keep(self, found: list[Fault], subject: Path) -> None:
        """The first inputs of each kind of fault, as they were."""
        kinds = {fault.kind for fault in found} - self._known
        if not kinds or self.kept is None:
            return
        self._known |= kinds
        place = self.kept / f"{self.format}-{self.seed}-{found[0].index}"
        _remove(place)
        place.mkdir(parents=True)
        os.rename(subject, place / subject.name)
        told = [{"fault": one.fault, "change": one.change, "command": one.command} for one in found]
        (place / "faults.json").write_text(json.dumps(told, indent=1))


def _all_below(folder: Path) -> Iterator[Path]:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            yield path


def _remove(folder: Path) -> None:
    """Also what has no permissions."""
    if not folder.exists():
        return
    for place, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(place, 0o700)
    shutil.rmtree(folder)
