"""The benchmark of `simulation=auto`: a warm-up that does not count, and each engine goes first in its turn."""

from experiments.benchmarks import auto


def test_the_first_run_does_not_count_and_each_engine_goes_first_once(monkeypatch, capsys):
    calls = []

    def run(workload, engine):
        calls.append(engine)
        return (100.0 if len(calls) == 1 else 2.0), "in this process"

    monkeypatch.setattr(auto, "run", run)
    monkeypatch.setattr("sys.argv", ["auto", "--only", "matrix_row", "--repeats", "3"])
    auto.main()
    turns = [calls[start : start + 3] for start in (1, 4, 7)]
    assert [turn[0] for turn in turns] == list(auto.ENGINES)
    assert all(sorted(turn) == sorted(auto.ENGINES) for turn in turns)
    assert "| matrix row | 2.0 s | 2.0 s | 2.0 s | this process | 1.00 |" in capsys.readouterr().out
