"""Which figures there are, and what goes into them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from defenses.mjp import INDEX, UNKNOWN
from experiments.measure.jigsawed import draw_jigsaw, layout, mjp_of
from experiments.measure.subjects import Subject
from fedsim.errors import NotApplicable
from fedsim.report.draw import attention, embeddings
from fedsim.report.draw.embeddings import EmbeddingView
from fedsim.report.measures import figures as measure_figures
from fedsim.settings.commands import MeasureConfig, MeasureSettings

Figure = dict[str, str]
MODELS_DRAWN = 8
"""Figures show one model of each name, up to this many."""


def embedding_view(subject: Subject) -> EmbeddingView | None:
    """What tokens are told of their positions, by what it belongs to; None where the model has none for each patch.

    With a second table of index embeddings (mjp's IDX) that is the sum of both.
    """
    name, grid = subject.roles.pos_embed, subject.roles.grid
    if name is None or grid is None:
        return None
    parameters = dict(subject.model.named_parameters())
    added = [parameters[name], *([parameters[INDEX]] if INDEX in parameters else [])]
    whole = torch.stack([table.detach().cpu().double() for table in added]).sum(dim=0)
    whole = whole.reshape(-1, whole.shape[-1])
    prefix = subject.roles.embedded_prefix_tokens
    if len(whole) != prefix + grid[0] * grid[1]:
        return None
    unknown = parameters.get(UNKNOWN)
    shared = None if unknown is None else unknown.detach().cpu().double().reshape(-1)
    has_class_token = subject.roles.class_token is not None
    return EmbeddingView(subject.name, whole[prefix:], grid, whole[:prefix], shared, has_class_token)


def draw_all(
    subjects: Sequence[Subject], records: Sequence[dict[str, Any]], config: MeasureConfig, root: Path
) -> list[Figure]:
    """Write the figures below `root`, and tell the page what each shows."""
    measure, figures = config.measure, []
    shown = list({subject.name: subject for subject in reversed(subjects)}.values())[::-1][:MODELS_DRAWN]
    if measure_figures.draw_jigsaw(records, root / "figures" / "jigsaw.png"):
        hint = "Bars are standard deviations, over runs of one name or, of a single run, over draws of the masks."
        figures.append(_figure("jigsaw", "Answers to jigsawed pictures, over the mask ratio", hint))
    if measure_figures.draw_corruptions(records, root / "figures" / "corruptions.png"):
        figures.append(_figure("corruptions", "Errors on corrupted pictures", "Mean over the severities."))
    views = [view for subject in shown if (view := embedding_view(subject)) is not None]
    for method in measure.projections if views else []:
        embeddings.draw_projections(views, method, root / "figures" / f"projection-{method}.png", config.seed)
        hint = (
            "A point is the embedding of one position: red grows to the right, blue downwards, lines join neighbours, "
            "the corners have their index. A grid that can be recognised tells where patches belong."
        )
        caption = f"Position embeddings projected by {embeddings.TITLES[method]}"
        figures.append(_figure(f"projection-{method}", caption, hint))
    if views:
        embeddings.draw_energy(views, root / "figures" / "energy.png")
        hint = "The sooner a curve rises, the fewer directions hold the embeddings, and the easier positions are told."
        figures.append(_figure("energy", "Energy and variance of the position embeddings", hint))
    for number, view in enumerate(views):
        embeddings.draw_similarity(view, root / "figures" / f"similarity-{number}.png")
        hint = "Each tile is the grid as seen from one position: red where embeddings point the same way."
        figures.append(_figure(f"similarity-{number}", f"Similarity of position embeddings: {view.name}", hint))
    return figures + _attention(shown, config, root)


def _figure(name: str, caption: str, hint: str) -> Figure:
    return {"file": f"figures/{name}.png", "caption": caption, "hint": hint}


def _attention(subjects: Sequence[Subject], config: MeasureConfig, root: Path) -> list[Figure]:
    """One figure for each patch grid and each puzzle's: models with the same ones see the same x̃."""
    measure = config.measure
    groups: dict[Any, list[Subject]] = {}
    for subject in subjects:
        if measure.attention and subject.roles.grid is not None and subject.roles.patch is not None:
            groups.setdefault((subject.roles.grid, subject.roles.patch, layout(subject, None)), []).append(subject)
    figures = []
    for number, members in enumerate(groups.values()):
        name = f"attention-{number}"
        if not _draw_group(members, measure, config.seed, root / "figures" / f"{name}.png"):
            continue
        caption = "What the class token looks at in the last layer, mean over heads"
        hint = (
            f"Left whole pictures, right the same with masks of ratio {measure.attention_ratio:g}, shuffled. Bright "
            "patches get the most attention; each map has its own scale. Without a class token: what patches get."
        )
        figures.append(_figure(name, caption, hint))
    return figures


@torch.no_grad()
def _draw_group(subjects: Sequence[Subject], measure: MeasureSettings, seed: int, path: Path) -> bool:
    first = subjects[0]
    count = min(measure.attention, len(first.pictures))
    whole = first.pictures.images.images(range(count))
    size, grid = layout(first, None), first.roles.grid
    assert grid is not None  # the puzzle's squares may be others
    jigsaw = draw_jigsaw(count, *size, measure.attention_ratio, measure.min_block, seed, 0)
    jigsawed = jigsaw.shuffled(whole, 0)
    views = []
    for subject in subjects:
        mjp = mjp_of(subject)
        maps = []
        for images, mask in ((whole, None), (jigsawed, jigsaw.masks)):
            try:
                with attention.last_attention(subject.model) as taken:
                    if mjp is None:
                        subject.model(subject.normalise(images))
                    else:
                        with mjp.masking(mask):
                            subject.model(subject.normalise(images))
            except NotApplicable:
                break
            tokens = subject.roles.prefix_tokens, subject.roles.class_token is not None
            maps.append(attention.attention_maps(taken[0].cpu(), grid, *tokens).mean(dim=1))
        if len(maps) == 2:
            views.append(attention.AttentionView(subject.name, *maps))
    if not views:
        return False
    attention.draw_attention(whole, jigsawed, views, path)
    return True
