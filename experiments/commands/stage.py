"""How far a command is: what an interruption may cut off, and what it has to say, depend on it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESUME_POINTS = "resume"
"""The folder of a federated run that holds where it can go on."""

STUDY = "a study"
"""The name of all commands that go on with the same words."""

KEPT = {"fedsim-prior": "**/checkpoints/*.safetensors", "fedsim-measure": "measures.json"}
"""Files without which nothing of a command's work is kept."""

NO_POINTS = "resume_every_seconds: null"
"""The setting of a run that leaves none."""


@dataclass
class CommandStage:
    """The one mutable thing that a command shares with whoever watches for Ctrl-C.

    Attributes:
        open: the work has begun: files are open and workers run, which have to be left in order.
        folder: where the run's files go; None before any run.
        discard: removes what Hydra made for a run that has not begun.
        resumes: the same call on the same folder goes on where it stopped.
    """

    name: str
    resumes: bool = False
    open: bool = False
    folder: Path | None = None
    discard: Callable[[], None] = lambda: None

    def reach(self, folder: Path, discard: Callable[[], None]) -> None:
        """A run is about to be checked, for which Hydra has made a folder."""
        self.folder, self.open, self.discard = folder, False, discard

    def begin(self, folder: Path) -> None:
        """The work begins."""
        self.folder, self.open = folder, True

    def keeps(self, folder: Path) -> bool:
        """Whether any of the command's work is there."""
        return self.name not in KEPT or any(folder.glob(KEPT[self.name]))

    def interrupted(self) -> str:
        """The line that says what is left and how to go on."""
        if self.name == STUDY and self.open:
            return "interrupted: the same command goes on from here"
        if self.folder is None or not self.open or not self.folder.exists():
            return "interrupted before anything started"
        folder = shortest(self.folder)
        if not self.keeps(folder):
            return f"interrupted: nothing is kept yet; the same command with run_dir={folder} begins anew"
        if self.resumes:
            return f"interrupted: what had finished is in {folder}; the same command with run_dir={folder} goes on"
        kept = f"interrupted: what had finished is in {folder}"
        if any((self.folder / RESUME_POINTS).glob("round-*")):
            return f"{kept}; {self.name} resume={folder} goes on"
        if self.name == "fedsim" and can_begin_anew(self.folder):
            return f"{kept}; there is no resume point yet: {self.name} resume={folder} begins anew there"
        if self.name == "make demo":
            return f"{kept}; {self.name} begins anew in another folder"
        return f"{kept}; the same command with another run_dir begins anew"


def can_begin_anew(folder: Path) -> bool:
    """Whether `fedsim resume=` takes up a run without resume points: its settings are there, and ask for some."""
    settings = folder / "config.yaml"
    return settings.is_file() and NO_POINTS not in settings.read_text(encoding="utf-8")


def shortest(path: Path) -> Path:
    """The path as seen from here, where that is shorter."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
