"""The paper's algorithms (Ren et al. 2023, section 3), position by position, from the same draws."""

import math

import torch


class Counted:
    """A generator that knows how many numbers it gave."""

    def __init__(self, rng):
        self.rng, self.given = rng, 0

    def __call__(self):
        self.given += 1
        return float(torch.rand((), generator=self.rng, dtype=torch.float64))


def skip_to_multiple(counted, chunk):
    """Numbers are drawn by the chunk: the rest of the last one is lost."""
    while counted.given % chunk:
        counted()


def mask_of(rows, columns, ratio, min_block, uniform):
    """BEiT's generator on nested lists."""
    masked = [[False] * columns for _ in range(rows)]
    target = math.floor(ratio * rows * columns)
    while True:
        count = sum(sum(row) for row in masked)
        if count >= target:
            return masked
        added = 0
        for _ in range(10):
            area = min_block + uniform() * (target - count - min_block)
            low, high = math.log(0.3), math.log(1 / 0.3)
            aspect = math.exp(low + uniform() * (high - low))
            height, width = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if height < 1 or width < 1 or height >= rows or width >= columns:
                continue
            top, left = math.floor(uniform() * (rows - height + 1)), math.floor(uniform() * (columns - width + 1))
            cells = [(r, c) for r in range(top, top + height) for c in range(left, left + width) if not masked[r][c]]
            if 1 <= len(cells) <= target - count:
                for r, c in cells:
                    masked[r][c] = True
                added = len(cells)
                break
        if added == 0:
            return masked


def permuted(mask, draws):
    """Masked positions, sorted by their draws, come to the masked positions in order."""
    positions = [n for n, is_masked in enumerate(mask) if is_masked]
    order = list(range(len(mask)))
    for place, (_, source) in zip(positions, sorted(zip(draws, positions, strict=True)), strict=True):
        order[place] = source
    return order


def rearranged(picture, order, patch, pixels=None):
    """[C,H,W]: patch order[n] at n, and within the patches of `pixels` (by position) the pixels in that order."""
    moved = picture.clone()
    columns = picture.shape[2] // patch[1]
    for n, source in enumerate(order):
        for i in range(patch[0] * patch[1]):
            from_pixel = i if pixels is None or pixels.get(n) is None else pixels[n][i]
            to = (n // columns * patch[0] + i // patch[1], n % columns * patch[1] + i % patch[1])
            row = source // columns * patch[0] + from_pixel // patch[1]
            column = source % columns * patch[1] + from_pixel % patch[1]
            moved[:, to[0], to[1]] = picture[:, row, column]
    return moved


def tokens_of(model, images, mask, unknown, prefixes, embedded):
    """What goes into a timm ViT's blocks: each patch with its own or the unknown embedding, behind the class tokens."""
    patches = model.patch_embed(images)
    rows = []
    for b in range(len(images)):
        row = []
        for i, token in enumerate(prefixes):
            row.append(token[0, 0] + model.pos_embed[0, i] if embedded else token[0, 0])
        for n in range(patches.shape[1]):
            own = model.pos_embed[0, n + (len(prefixes) if embedded else 0)]
            row.append(patches[b, n] + (unknown if mask[b][n] else own))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def localisation_loss(regress, embedding, mask, grid, unit=False):
    """The mean over pictures of the mean over unmasked positions of the mean error of a coordinate."""
    losses = []
    for picture in mask:
        errors = []
        for n, is_masked in enumerate(picture):
            if not is_masked:
                row, column = divmod(n, grid[1])
                found = regress(embedding[n])
                place = (row / grid[0], column / grid[1]) if unit else (row, column)
                errors.append(((found[0] - place[0]).abs() + (found[1] - place[1]).abs()) / 2)
        losses.append(sum(errors) / len(errors))
    return sum(losses) / len(losses)
