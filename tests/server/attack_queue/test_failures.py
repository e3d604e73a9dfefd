"""What a run says of attacks that came to nothing."""

from fedsim.observation import observation_name
from fedsim.result import AttackResult
from server.attack_queue.failures import AttackFailures


def test_the_first_failure_of_an_attack_is_told_and_all_are_counted():
    said = []
    failures = AttackFailures(said.append)
    assert str(failures) == ""
    for client in range(3):
        failures.note(AttackResult(observation_name(1, client), "tag", "failed", "ValueError: no"))
    failures.note(AttackResult(observation_name(1, 0), "april", "refused", "E_pos is withheld"))
    failures.note(AttackResult(observation_name(1, 0), "labels", "done"))
    assert said == ["tag failed on round-00001-client-00000: ValueError: no"]
    assert str(failures) == " (3 failed: tag; 1 refused: april)"
