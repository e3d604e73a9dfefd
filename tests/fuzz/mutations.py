"""What a hostile or broken client may do to an honest reply: each function changes one thing in place."""

import io
import json
import pickle
import zipfile

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import strategies as st

from fedsim.wire.records import ARRAYS, AUDIT, METRICS, NUM_EXAMPLES, UPDATE

NASTY = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "C:\\x",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "x\n2026-11-01 00:00:00,000 INFO server: all is well",
    "x\r\nround 1",
    "\x1b[31mred\x07",
    "\x00",
    "\u202egnp.exe",
    "\u2028",
    "\ud800",
    "a" * 5000,
    "{{7*7}}",
    "${seed}",
    "NaN",
    "train_loss",
    "clients",
    "accuracy",
    "local_dp_",
    "local_dp_../../x",
    "local_dp_<b>",
    "head.weight",
    "norm.num_batches_tracked",
    "frozen",
    "fixed_pe",
]
NUMBERS = [
    *(0, 1, -1, 2, 3, 1000, 1001, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 2.0, 1e-320, 1e12, 1.1e12, 1e38, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
]
MADE = ["float16", "float64", "int64", "uint8", "bool", "complex64"]
DTYPES = [*MADE, "float32", "object", "bfloat16", "<U5", "S3", "x"]
RECORDS = [ARRAYS, METRICS, UPDATE, AUDIT]
JSON_TEXTS = [
    "",
    "[",
    "[]",
    "{}",
    "null",
    "1",
    '"x"',
    "{",
    '{"a":}',
    "[" * 100_000,
    '{"a":' * 50_000,
    "1" * 5000,
    "NaN",
]

texts = st.sampled_from(NASTY) | st.text(max_size=20)
longer_than_printed = st.sampled_from([400, 5000]).map(lambda digits: 10**digits)
numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats() | longer_than_printed
scalars = numbers | texts | st.binary(max_size=20) | st.booleans()
lists = st.lists(texts, max_size=4) | st.lists(numbers.filter(lambda n: isinstance(n, int)), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | numbers.filter(lambda n: abs(n) < 10**4000 or n != n) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)


def drop_record(draw, content):
    content.pop(draw(st.sampled_from(RECORDS)), None)


def add_record(draw, content):
    array = Array(np.zeros(2, dtype=np.float32))
    made = [ArrayRecord({"w": array}), ArrayRecord(), MetricRecord({"a": 1}), ConfigRecord({"a": "b"}), ConfigRecord()]
    key = draw(texts | st.sampled_from(["fedsim.sum", "fedsim.sum-of", "config", *RECORDS]))
    content[key] = draw(st.sampled_from(made))


def rename_record(draw, content):
    key = draw(st.sampled_from(RECORDS))
    if key in content:
        content[draw(texts)] = content.pop(key)


def _of(content, key, kind):
    record = content.get(key)
    return record if isinstance(record, kind) else kind()


def _some_array(draw, content):
    arrays = _of(content, ARRAYS, ArrayRecord)
    if not arrays:
        return arrays, None, None
    name = draw(st.sampled_from(sorted(arrays)))
    return arrays, name, arrays[name]


def drop_array(draw, content):
    arrays, name, _ = _some_array(draw, content)
    if name is not None:
        del arrays[name]


def drop_all_arrays(draw, content):
    _of(content, ARRAYS, ArrayRecord).clear()


def add_array(draw, content):
    arrays, _, like = _some_array(draw, content)
    arrays[draw(texts)] = like or Array(np.zeros(2, dtype=np.float32))


def rename_array(draw, content):
    arrays, name, _ = _some_array(draw, content)
    if name is not None:
        arrays[draw(texts)] = arrays.pop(name)


def swap_arrays(draw, content):
    arrays, one, _ = _some_array(draw, content)
    _, other, _ = _some_array(draw, content)
    if one is not None:
        arrays[one], arrays[other] = arrays[other], arrays[one]


def reorder_arrays(draw, content):
    arrays = _of(content, ARRAYS, ArrayRecord)
    order = draw(st.permutations(sorted(arrays)))
    content[ARRAYS] = ArrayRecord({name: arrays[name] for name in order})


def array_dtype(draw, content):
    """The record's word alone, or values of another type."""
    arrays, name, array = _some_array(draw, content)
    if name is None:
        return
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        arrays[name] = Array(dtype, array.shape, array.stype, array.data)
    elif dtype in MADE:
        arrays[name] = Array(np.zeros(array.shape, dtype=dtype))


def array_shape(draw, content):
    arrays, name, array = _some_array(draw, content)
    if name is None:
        return
    sides = st.sampled_from([0, 1, 2, 3, 4, 12, -1, 10**6, 2**40, 2**64, 10**30])
    equal = tuple(bool(side) if side == 1 else side for side in array.shape)
    shape = draw(st.just(equal) | st.lists(sides, max_size=5).map(tuple))
    if draw(st.booleans()) or any(side is True or not 0 <= side <= 12 for side in shape):
        arrays[name] = Array(array.dtype, shape, array.stype, array.data)
    else:
        arrays[name] = Array(np.zeros(shape, dtype=np.float32))


def array_stype(draw, content):
    arrays, name, array = _some_array(draw, content)
    if name is not None:
        arrays[name] = Array(array.dtype, array.shape, draw(texts), array.data)


def array_bytes(draw, content):
    """Truncated, extended, another header, a pickle, a zip."""
    arrays, name, array = _some_array(draw, content)
    if name is None:
        return
    data = array.data
    forged = [
        b"",
        data[: draw(st.integers(0, len(data)))],
        data + draw(st.binary(min_size=1, max_size=9)),
        draw(st.binary(max_size=200)),
        data.replace(b"'shape': (", b"'shape': (99999999999, ", 1),
        data.replace(b"<f4", b"|O8", 1),
        data.replace(b"False", b"True ", 1),
        data.replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03", 1),
        pickle.dumps({"a": 1}),
        _npz(),
        _npy(np.array([{"a": 1}], dtype=object)),
        _npy(np.asfortranarray(np.ones((2, 3), dtype=np.float32))),
    ]
    arrays[name] = Array(array.dtype, array.shape, array.stype, draw(st.sampled_from(forged)))


def array_values(draw, content):
    """One value of the array, or all."""
    arrays, name, array = _some_array(draw, content)
    if name is not None and all(0 <= side <= 12 for side in array.shape):
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38, 1e20, 1.1e12, 1e12, -1e12, 1e-45, 0.0]))
        values = np.zeros(array.shape, dtype=np.float32)
        values.flat[: None if draw(st.booleans()) else 1] = value
        arrays[name] = Array(values)


def num_examples(draw, content):
    _force(_of(content, METRICS, MetricRecord), NUM_EXAMPLES, draw(scalars | lists | st.none()))


def metric_value(draw, content):
    metrics = _of(content, METRICS, MetricRecord)
    if metrics:
        _force(metrics, draw(st.sampled_from(sorted(metrics))), draw(scalars | lists | st.none()))


def add_metric(draw, content):
    _force(_of(content, METRICS, MetricRecord), draw(texts), draw(scalars | lists))


def many_metrics(draw, content):
    metrics = _of(content, METRICS, MetricRecord)
    for number in range(draw(st.sampled_from([10, 300]))):
        metrics[f"local_dp_{number}"] = float(number)


def drop_metric(draw, content):
    metrics = _of(content, METRICS, MetricRecord)
    if metrics:
        del metrics[draw(st.sampled_from(sorted(metrics)))]


def update_value(draw, content):
    update = _of(content, UPDATE, ConfigRecord)
    if update:
        _force(update, draw(st.sampled_from(sorted(update))), draw(scalars | lists | st.sampled_from(JSON_TEXTS)))


def update_keys(draw, content):
    update = _of(content, UPDATE, ConfigRecord)
    if update and draw(st.booleans()):
        del update[draw(st.sampled_from(sorted(update)))]
    else:
        update[draw(texts)] = draw(texts)


def kind(draw, content):
    _of(content, UPDATE, ConfigRecord)["kind"] = draw(st.sampled_from(["gradient", "delta", "weights"]) | texts)


def partition(draw, content):
    _of(content, UPDATE, ConfigRecord)["partition-id"] = draw(st.integers(-3, 5) | numbers)


def withheld(draw, content):
    names = texts | st.sampled_from(["head.weight", "hidden.bias", "scale", "pos_embed"])
    by = st.sampled_from(["fixed_pe", "local_dp", "mjp"]) | texts
    said = draw(st.dictionaries(names, by, max_size=4) | json_values)
    _of(content, UPDATE, ConfigRecord)["withheld"] = json.dumps(said)


def withhold_really(draw, content):
    """As an honest client would whose defense keeps tensors back, from one to all."""
    arrays, update = _of(content, ARRAYS, ArrayRecord), _of(content, UPDATE, ConfigRecord)
    gone = draw(st.sets(st.sampled_from(sorted(arrays)))) if arrays else set()
    for name in gone:
        del arrays[name]
    update["withheld"] = json.dumps(dict.fromkeys(gone, "fixed_pe") | {"frozen": "fixed_pe"})
    update["buffers"] = [name for name in arrays if name.startswith("norm.running")]


def buffers(draw, content):
    known = st.sampled_from(["norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "head.weight"])
    _force(_of(content, UPDATE, ConfigRecord), "buffers", draw(st.lists(known | texts, max_size=4) | lists | scalars))


def protocol_field(draw, content):
    update = _of(content, UPDATE, ConfigRecord)
    try:
        values = json.loads(update["protocol"])
        names = sorted(values)
    except (KeyError, TypeError, ValueError, RecursionError):
        return
    if isinstance(values, dict) and names:
        values[draw(st.sampled_from(names) | texts)] = draw(json_values)
        update["protocol"] = json.dumps(values)


def protocol_text(draw, content):
    update = _of(content, UPDATE, ConfigRecord)
    update["protocol"] = draw(st.sampled_from(JSON_TEXTS) | texts | json_values.map(json.dumps))


def audit_value(draw, content):
    audit = _of(content, AUDIT, ConfigRecord)
    if audit:
        _force(audit, draw(st.sampled_from(sorted(audit))), draw(scalars | lists))


def audit_keys(draw, content):
    audit = _of(content, AUDIT, ConfigRecord)
    if audit and draw(st.booleans()):
        del audit[draw(st.sampled_from(sorted(audit)))]
    else:
        audit[draw(texts)] = draw(texts)


def audit_pictures(draw, content):
    audit = _of(content, AUDIT, ConfigRecord)
    count, channels, side = draw(st.tuples(st.integers(0, 4), st.sampled_from([1, 3, 4]), st.sampled_from([1, 4, 5])))
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "uint8"]))
    values = np.full(
        (count, channels, side, side), draw(st.sampled_from([0.5, np.nan, 1e30, -3.0, 200])), dtype="float64"
    )
    with np.errstate(all="ignore"):
        audit[draw(st.sampled_from(["images", "private"]))] = _npy(np.nan_to_num(values).astype(dtype))
    if draw(st.booleans()):
        audit["labels"], audit["ids"] = [0] * count, [f"{number}" for number in range(count)]


def audit_names(draw, content):
    audit = _of(content, AUDIT, ConfigRecord)
    _force(audit, "ids", draw(st.lists(texts, max_size=3)))
    _force(audit, "labels", draw(st.lists(numbers, max_size=3)))


def _force(record, key, value):
    """Past the record's own checks of types: an engine need not be Flower's."""
    record.__dict__["_data"][key] = value


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _npz():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.npy", _npy(np.ones(2)))
    return buffer.getvalue()


MUTATIONS = {
    change.__name__: change
    for change in (
        *(drop_record, add_record, rename_record),
        *(drop_array, drop_all_arrays, add_array, rename_array, swap_arrays, reorder_arrays),
        *(array_dtype, array_shape, array_stype, array_bytes, array_values),
        *(num_examples, metric_value, add_metric, many_metrics, drop_metric),
        *(
            update_value,
            update_keys,
            kind,
            partition,
            withheld,
            withhold_really,
            buffers,
            protocol_field,
            protocol_text,
        ),
        *(audit_value, audit_keys, audit_pictures, audit_names),
    )
}


@st.composite
def changes(draw, most=3):
    """Names of one to `most` mutations, and what makes them reproducible: the drawing itself."""
    return draw(st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=most))
