"""What a run says of attacks that came to nothing."""

from experiments.engine.mishaps import Mishaps
from server.attacking import Outcome
from server.results import Job


def test_the_first_failure_of_an_attack_is_told_and_all_are_counted():
    said = []
    mishaps = Mishaps(said.append)
    assert str(mishaps) == ""
    for client in range(3):
        mishaps.note(Job(1, client, "tag", 1), Outcome("failed", "ValueError: no"))
    mishaps.note(Job(1, 0, "april", 1), Outcome("refused", "E_pos is withheld"))
    mishaps.note(Job(1, 0, "labels", 1), Outcome("done"))
    assert said == ["tag failed on round-00001-client-00000: ValueError: no"]
    assert str(mishaps) == " (3 failed: tag; 1 refused: april)"
