"""Whatever one client sends, the round goes on: its reply is refused with a reason, or does no harm."""

import logging
import os
from collections import Counter

import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsim.storage.observation_files import save_observation
from fedsim.wire.records import METRICS, NUM_EXAMPLES, from_arrays
from tests.fuzz.effort import effort
from tests.fuzz.federation import CLIENTS, KINDS, Server, as_reply, honest, start
from tests.fuzz.mutations import MUTATIONS, changes

EXAMPLES = int(os.environ.get("FUZZ_REPLIES", "120"))
"""The full number is 10,000: `FUZZ_REPLIES=10000 pytest -s --timeout=0 tests/fuzz/test_replies.py`."""

EVALUATION = [name for name in sorted(MUTATIONS) if "metric" in name or "record" in name or name == "num_examples"]


@pytest.fixture(autouse=True)
def quiet():
    """Flower logs each round."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def hostile_reply(data, kind, hostile):
    """The content, and what was done to it."""
    wire, audited = data.draw(st.integers(0, 3)) > 0, data.draw(st.booleans())
    content, names = honest(kind, hostile, audited, wire), data.draw(changes())
    for name in names:
        MUTATIONS[name](data.draw, content)
    return content, names


def check_harmless(arrays, metrics):
    state, before = from_arrays(arrays), from_arrays(start())
    assert {name: (t.dtype, t.shape) for name, t in state.items()} == {n: (t.dtype, t.shape) for n, t in before.items()}
    assert all(tensor.isfinite().all() for tensor in state.values())
    assert all(value == value for value in (metrics or {}).values())


def test_one_hostile_client_spoils_no_round(tmp_path):
    counts: Counter[str] = Counter()

    @effort(EXAMPLES)
    @given(st.data())
    def run(data):
        kind, hostile = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, CLIENTS - 1))
        content, names = hostile_reply(data, kind, hostile)
        alone = data.draw(st.integers(0, 9)) == 9
        others = [client for client in range(CLIENTS) if client != hostile and not alone]
        observed = {}
        server = Server(kind, lambda observation, truth: observed.update({observation.client: (observation, truth)}))
        replies = [as_reply(honest(kind, client), client) for client in others]
        arrays, metrics = server.round([*replies, as_reply(content, hostile)])
        failures = server.failures
        refused = failures.pop(hostile, None)
        verdict = "accepted" if refused is None else "refused"
        counts[verdict] += 1
        if len(names) == 1:
            counts[f"{names[0]}: {verdict}"] += 1
        if refused is not None:
            assert refused.isprintable()
            assert refused.startswith("malformed reply: ")
            assert len(refused) <= 600
            assert "<" not in refused
        if arrays is None:
            assert alone
        else:
            assert not failures
            check_harmless(arrays, metrics)
        assert set(observed) == set(others) | (set() if refused else {hostile})
        if refused is None:
            observation, truth = observed[hostile]
            save_observation(observation, tmp_path / "observation")
            assert truth is None or torch.isfinite(truth.images).all()

    run()
    for name, count in sorted(counts.items()):
        print(f"{count:6d}  {name}")
    assert counts["refused"] > 0
    assert counts["accepted"] > 0


def test_evaluation_goes_on_too():
    @effort(max(1, EXAMPLES // 10))
    @given(st.data())
    def run(data):
        content = RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: 5, "loss": 0.5, "accuracy": 0.5})})
        for name in data.draw(st.lists(st.sampled_from(EVALUATION), min_size=1, max_size=2)):
            MUTATIONS[name](data.draw, content)
        good = RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: 5, "loss": 0.5, "accuracy": 1.0})})
        rounds = Server("delta", lambda *_: None).rounds
        rounds.heard(1, map(as_reply, (good, content), (0, 1)))
        metrics = rounds.record.metrics
        assert set(metrics) == {"client_loss", "client_accuracy"}
        assert all(0 <= value <= 1e12 for value in metrics.values())

    run()
