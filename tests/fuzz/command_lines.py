"""Command lines that somebody might type: a sound one, and then one thing or two wrong with it."""

from functools import cache

from hydra import compose, initialize_config_module
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

COMMANDS = {"fedsim": "config", "fedsim-audit": "audit"}
GROUPS = {
    "partition": ["iid", "dirichlet", "pathological", "shard"],
    "strategy": ["fedsgd", "fedavg", "fedadam", "krum", "qfedavg", "bulyan"],
    "model": ["vit_nano", "mlp", "lenet_dlg"],
    "defense": [
        "[]",
        "[fixed_pe]",
        "[mjp]",
        "[dp_sgd]",
        "[topk,local_dp]",
        "[leakage_gate]",
        "[withhold]",
        "[precode]",
    ],
    "attack": ["[patch_gradient,labels]", "[dlg]", "[gradinversion]", "[labels_llg,sme]", "[]"],
    "bound": ["[]", "[]", "[reconstruction_robustness]", "[pairs,canaries]"],
    "simulation": ["auto", "inline", "ray"],
    "tracker": ["[]", "[]", "[]", "[tensorboard]"],
}
SMALL = {"fedsim": ["num_clients=4", "num_rounds=1"], "fedsim-audit": ["data=digits", "audit.num_images=2"]}

VALUES = [
    *("", "null", "-1", "0", "1", "2", "7", "2.5", "-0.5", "1e-400", "1e308", "nan", "inf", "-inf", "true", "false"),
    *("abc", "'a b'", "'<script>alert(1)</script>'", "'../../x'", "'é'", "'\\n'", "' '", "a" * 300, "None", "auto"),
    *("all", "[]", "[1,2]", "[a]", "[[[]]]", "[null]", "{}", "{a:1}", "{a:{b:[1]}}", "{_target_:os.getcwd}"),
    *("{_target_:no.such}", "{_target_:torch.nn.Linear,in_features:1,out_features:1}", "{_target_:builtins.int}"),
    *("{_target_:3}", "${seed}", "${no.such.key}", "${now:%Y}", "${", "???", "a,b", "choice(1,2)", "range(1,3)"),
    *("glob(*)", "$HOME", "~", "0x10", "1_000", "1/2", "--1", "=", "==1", "'", '"', "[", "{", "[1,", "{a:", "a:b"),
    *("@x", "\\", "%s", "\u202e", "\x1b[31m"),
]
TARGETS = [
    *("", "x", "os.getcwd", "torch.optim.SGD", "torch.nn.Linear", "builtins.dict", "flwr.serverapp.strategy.FedAvg"),
    *("flwr.serverapp.strategy", "defenses.Defense", "attacks.base.Attack", "fedsim.data.Digits", "..."),
    *("1", "null", "[a]"),
]
HUGE = ["1000000000000", "-1000000000000", "99999999999999999999999"]
BUILT = ("model.", "defense.precode", "defense.mjp", "data.", "partition.")
"""Settings that say how much is built: there a huge number is no fault but a wish for more than this machine has."""

OTHER_FAULTS = ["text", "missing", "added", "typo", "option", "options", "junk", "folder"]

CONSTRUCTOR = [f"model.kwargs.{name}" for name in ("depth", "num_heads", "embed_dim", "drop_path_rate", "x")]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@cache
def keys_of(command, chosen):
    """Every key that these choices have, and may be set."""
    with initialize_config_module("conf", version_base=None):
        config = compose(COMMANDS[command], [*chosen])
    return [key for key in _walk(config, "") if not key.startswith(("hydra", "run_dir"))]


def _walk(config, prefix):
    for name in config:
        yield f"{prefix}{name}"
        value = config._get_node(name)
        if isinstance(value, DictConfig) and not OmegaConf.is_missing(config, name):
            yield from _walk(value, f"{prefix}{name}.")


@st.composite
def command_lines(draw):
    """The command and its arguments, but for the run's folder."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    others = ("bound",) if command == "fedsim" else ("partition", "strategy")
    groups = [group for group in GROUPS if group not in others]
    picked = draw(st.sets(st.sampled_from(groups), max_size=3))
    chosen = [*SMALL[command], "tracker=[]"]
    chosen += [f"{group}={draw(st.sampled_from(GROUPS[group]))}" for group in sorted(picked)]
    if command == "fedsim-audit" and "model" not in picked:
        chosen.append("model=vit_nano")
    keys = keys_of(command, tuple(chosen))
    wrong = st.lists(faults(keys).filter(lambda argument: not argument.startswith("-")), min_size=1, max_size=2)
    return command, chosen + draw(wrong)  # what begins with a hyphen is an option of Hydra's, not a setting


@st.composite
def faults(draw, keys):
    key = draw(st.sampled_from(keys))
    value, how = draw(st.sampled_from(VALUES)), draw(st.sampled_from(["value"] * 8 + OTHER_FAULTS))
    if how == "value":
        values = TARGETS if key.endswith("_target_") else VALUES + ([] if key.startswith(BUILT) else HUGE)
        return f"{key}={draw(st.sampled_from(values))}"
    if how == "text":
        return f"{key}={draw(texts)}"
    if how == "missing":
        return f"~{key}"
    if how == "added":
        new = draw(st.sampled_from([key, f"{key}.x", f"{key}.0", f"{key}.x.y", *CONSTRUCTOR]))
        return f"{draw(st.sampled_from(['+', '++']))}{new}={value}"
    if how == "typo":
        place = draw(st.integers(0, len(key) - 1))
        return f"{key[:place]}{draw(st.sampled_from(['', 'x', '.', '-', ' ']))}{key[place + 1 :]}=1"
    if how == "option":
        return f"{draw(st.sampled_from(sorted(GROUPS)))}={draw(st.just(value) | texts)}"
    if how == "options":
        return f"{draw(st.sampled_from(['defense', 'attack', 'tracker']))}=[{value},{draw(texts)}]"
    if how == "folder":
        return f"{draw(st.sampled_from(['run_dir', 'resume', 'observation']))}={value}"
    return draw(texts)
