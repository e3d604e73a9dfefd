"""Words that begin with a dash: Hydra's. What it says of a wrong one is a page of usage."""

from collections.abc import Sequence

from fedsim.errors import nearest

HELP = ("--help", "-h")
WITH_VALUE: tuple[str, ...] = (
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
)
WITH_VALUE += ("--experimental-rerun", "--info", "-i")
ALONE: tuple[str, ...] = (
    *HELP,
    "--hydra-help",
    "--version",
    "--resolve",
    "--run",
    "-r",
    "--multirun",
    "-m",
    "--shell-completion",
    "-sc",
)


def wrong_flag(arguments: Sequence[str]) -> str:
    """What to say of the first flag that is none of Hydra's; empty where there is none."""
    known = (*ALONE, *WITH_VALUE)
    for argument in arguments:
        name = argument.partition("=")[0]
        if argument.startswith("-") and not any(flag.startswith(name) for flag in known) and name[:2] not in known:
            hint = nearest(name, known) or " Settings are KEY=VALUE, without dashes; --hydra-help lists the flags."
            return f"{argument}: there is no such flag.{hint}"
    return ""


def shows_only(arguments: Sequence[str]) -> bool:
    """Whether Hydra prints what it knows, and runs nothing."""
    return any(argument.partition("=")[0] in ("--info", "-i", "--hydra-help", "--cfg", "-c") for argument in arguments)


def wrong_sweep(arguments: Sequence[str]) -> str:
    """What to say of Hydra's own parameters of a sweep: its default is None, into which OmegaConf merges nothing."""
    own = next((one for one in arguments if one.lstrip("+~").startswith("hydra.sweeper.params")), "")
    return f"{own}: a sweep is written -m KEY=ONE,TWO" if own else ""


def flags_last(arguments: Sequence[str]) -> list[str]:
    """The same with settings together: Hydra takes no flag between two of them, as in `seed=1 -m defense=[],[half]`."""
    settings, flags, skip = list[str](), list[str](), False
    for argument in arguments:
        (flags if skip or argument.startswith("-") else settings).append(argument)
        skip = argument.startswith("-") and any(flag.startswith(argument) for flag in WITH_VALUE)
    return [*settings, *flags]


def words(arguments: Sequence[str]) -> list[str]:
    """What is neither a flag nor the value of one."""
    left, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("-"):
            left.append(argument)
        skip = argument in WITH_VALUE
    return left
