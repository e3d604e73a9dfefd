"""Lines of `attacks.jsonl` as `server.attack_queue.results` writes them, with whatever scores a case wants."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedsim.metrics.records import ImageScore

Line = dict[str, Any]

SAME = object()
"""For the client's own image: what the model saw."""


def image(
    psnr: float | None,
    name: str,
    *,
    own: Any = SAME,
    guess: float | None = 10.0,
    picture: str | None = "reconstructions/rebuilt.png",
    **more: Any,
) -> Line:
    """One observed image.

    Args:
        psnr, own: dB against what the model saw and against the client's own image.
        guess: dB of the public mean against the client's own, and, unless it is given, against what the model saw.
        picture: file of the reconstruction.
    """
    private = psnr if own is SAME else own
    likeness, own_likeness = (None if value is None else min(0.99, max(0.0, value / 50)) for value in (psnr, private))
    score = ImageScore(
        image=name,
        reconstruction=None if picture is None else 0,
        mse=None if psnr is None else 10 ** (-psnr / 10),
        psnr=psnr,
        ssim=likeness,
        private_psnr=private,
        private_ssim=own_likeness,
        label=3,
    )
    files = {"original": None, "reconstruction": picture, "frames": None, "guess_psnr": guess, "seen_guess_psnr": guess}
    files |= {"grey_psnr": None, "seen_grey_psnr": None, "content": None}
    return score.to_dict() | files | more


def hidden(name: str, guess: float | None = 10.0) -> Line:
    """An image that the attack did not rebuild."""
    return image(None, name, guess=guess, picture=None)


def line(attack: str, number: int, images: Iterable[Line], certified: bool = False, **more: Any) -> Line:
    """One attack on one update, done."""
    images = list(images)
    status = "certified" if certified else "uncertified"
    return {
        "observation": f"round-0000-client-{number:04d}",
        "round": 0,
        "client": number,
        "attack": attack,
        "status": "done",
        "target": "images",
        "baseline": False,
        "reason": "",
        "certificate": {"status": status, "reason": "", "values": {}},
        "trace": [],
        "seconds": 0.5,
        "batch_size": max(1, len(images)),
        "attempts": 1,
        "labels": None,
        "label_exact": None,
        "label_share": None,
        "scored": True,
        "images": images,
    } | more


def ended(
    psnrs: Sequence[float | None],
    attack: str = "rebuild",
    *,
    own: Any = SAME,
    guess: float | Sequence[float] | None = 10.0,
    certified: Iterable[int] = (),
    names: Sequence[str] = (),
    first: int = 0,
    **more: Any,
) -> list[Line]:
    """An attack that ended on so many updates of one image each.

    Args:
        own: of all images, or a list.
        certified: the numbers of the updates whose result it vouches for.
        names: of the images; else each has its own.
        first: number of the first update.
    """
    lines = []
    for place, psnr in enumerate(psnrs):
        known = own[place] if isinstance(own, list) else own
        mark = guess[place] if isinstance(guess, Sequence) else guess
        # Different images have different guesses: to the last bit only the same image has the same.
        mark = mark if mark is None or names or isinstance(guess, Sequence) else mark + 1e-6 * (place + first)
        name = names[place] if names else f"digits/{place + first}"
        found = image(psnr, name, own=known, guess=mark)
        lines.append(line(attack, place + first, [found], certified=place in set(certified), **more))
    return lines


def refused(updates: int, attack: str = "rebuild", *, first: int = 0, **more: Any) -> list[Line]:
    """An attack that does not apply to so many updates."""
    empty = {"status": "refused", "reason": "needs a gradient that is not shared", "certificate": None, "scored": False}
    return [
        line(attack, n, [hidden(f"digits/{n}", 10.0 + 1e-6 * n)], **empty | more) for n in range(first, first + updates)
    ]


def failed(updates: int, attack: str = "rebuild", *, first: int = 0, **more: Any) -> list[Line]:
    """An attack that raised on so many updates."""
    return refused(updates, attack, first=first, **{"status": "failed", "reason": "ZeroDivisionError: x"} | more)


def labels(updates: int, attack: str = "labels", *, certified: bool = False, **more: Any) -> list[Line]:
    """An attack that recovered every label and no image."""
    known = {"target": "labels", "labels": [3], "label_exact": True, "label_share": 1.0}
    return [line(attack, n, [hidden(f"digits/{n}")], certified=certified, **known | more) for n in range(updates)]
