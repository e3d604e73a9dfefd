"""Attacks that go wrong on order; Ray workers import them from the checkout."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from attacks.base import Attack, Frame, NotApplicable, Reconstruction
from fedsim.history import History
from fedsim.observation import Observation


class Faulty(Attack):
    """Does `fault` until the file `marker` exists, then returns a grey picture."""

    def __init__(self, fault: str, marker: str = "") -> None:
        self.fault = fault
        self.marker = Path(marker) if marker else None

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        if self.marker is not None and self.marker.exists():
            return Reconstruction(images=torch.full((1, *observation.image_shape), 0.5))
        if self.marker is not None:
            self.marker.touch()
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "raise":
            raise ZeroDivisionError("by zero")
        if self.fault == "refuse":
            raise NotApplicable("not today")
        return Reconstruction(images=torch.rand(1, *observation.image_shape, generator=rng))


class Rounds(Attack):
    """Refuses with the rounds that it was given."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        raise NotApplicable(f"round {observation.server_round}")

    def run_history(self, history: History, rng: torch.Generator, device: torch.device) -> Reconstruction:
        raise NotApplicable(f"rounds {' and '.join(str(one.server_round) for one in history.observations)}")


class Hungry(Attack):
    """Fits into memory once its chunk is at most `fits`; `says` is how it runs out of it."""

    def __init__(self, chunk: int, fits: int, says: str = "memory") -> None:
        self.chunk, self.fits, self.says = chunk, fits, says

    def shrink(self, device: torch.device) -> str:
        if self.chunk == 1:
            return ""
        self.chunk //= 2
        return f"chunk={self.chunk}"

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        images = torch.rand(1, *observation.image_shape, generator=rng)
        if self.chunk > self.fits:
            raise {
                "memory": MemoryError(),
                "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
                "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
                "other": RuntimeError("shapes do not match"),
            }[self.says]
        return Reconstruction(images=images)


class Costly(Attack):
    """Adds its name to a file when it runs."""

    def __init__(self, log: str, name: str, cost: float) -> None:
        self.log, self.name, self.cost = Path(log), name, cost

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        with self.log.open("a") as file:
            file.write(f"{self.name} {torch.get_num_threads()}\n")
        return Reconstruction()


class WrongShape(Attack):
    """Returns pictures that nothing can be compared with."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        return Reconstruction(images=torch.zeros(1, 3, 5, 5))


class Vandal(Attack):
    """Changes what other attacks will read."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        for tensor in (*observation.update.tensors.values(), *observation.global_state.values()):
            tensor.zero_()
        return Reconstruction()


class Walk(Attack):
    """A search as long ones are: random steps, saved every few; dies once at step `dies_at`, by a signal or Ctrl-C.

    Each step that is taken adds a line to the file `log`.
    """

    def __init__(
        self, log: str, steps: int = 10, save_every: int = 3, dies_at: int = 0, fault: str = "die", pause: float = 0.0
    ) -> None:
        self.log = Path(log)
        self.steps, self.save_every, self.dies_at, self.fault, self.pause = steps, save_every, dies_at, fault, pause

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        images = torch.full((observation.protocol.batch_size, *observation.image_shape), 0.5)
        first, frames = 0, []
        saved = self.session.load()
        if saved is not None:
            tensors, record = saved
            first, images = record["step"], tensors["images"]
            rng.set_state(tensors["rng"])
            frames = [Frame(step, tensors[f"frame/{step}"], {"objective": 1.0 / step}) for step in record["frames"]]
        name = f"{observation.server_round}-{observation.client}"
        for step in range(first + 1, self.steps + 1):
            time.sleep(self.pause)
            with self.log.open("a") as file:
                file.write(f"{name} {step}\n")
            images = (images + 0.1 * torch.randn(images.shape, generator=rng)).clamp(0, 1)
            frames.append(Frame(step, images, {"objective": 1.0 / step}))
            self.session.progress(step, self.steps, {"objective": 1.0 / step})
            if step == self.dies_at and self._first_time():
                if self.fault == "interrupt":
                    raise KeyboardInterrupt
                os.kill(os.getpid(), signal.SIGKILL)
            if step % self.save_every == 0:
                tensors = {f"frame/{frame.step}": frame.images for frame in frames}
                state = {"images": images, "rng": rng.get_state(), **tensors}
                self.session.save(state, {"step": step, "frames": [frame.step for frame in frames]})
        trace = tuple({"step": float(frame.step), **frame.values} for frame in frames)
        return Reconstruction(images=images, trace=trace, frames=tuple(frames))

    def _first_time(self) -> bool:
        marker = self.log.with_suffix(".died")
        if marker.exists():
            return False
        marker.touch()
        return True


class Crowd(Attack):
    """Serves several victims at once, and refuses, or takes offence at, some of them."""

    def __init__(self, log: str, refused: int = -1, fault_at: int = -1) -> None:
        self.log = Path(log)
        self.refused, self.fault_at = refused, fault_at

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        result = self.run_many([observation], [rng], device)[0]
        if isinstance(result, NotApplicable):
            raise result
        return result

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[torch.Generator], device: torch.device
    ) -> list[Reconstruction | NotApplicable]:
        with self.log.open("a") as file:
            file.write(" ".join(str(one.client) for one in observations) + "\n")
        results: list[Reconstruction | NotApplicable] = []
        for observation, rng in zip(observations, rngs, strict=True):
            if observation.client == self.fault_at:
                raise ZeroDivisionError("by zero")
            if observation.client == self.refused:
                results.append(NotApplicable("not this one"))
            else:
                shape = (observation.protocol.batch_size, *observation.image_shape)
                results.append(Reconstruction(images=torch.rand(shape, generator=rng)))
        return results


class SeedThief(Attack):
    """Draws the client's noise anew from the only seed that an observation holds."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        from dataclasses import replace

        from attacks.analytic import PatchGradient
        from fedsim.determinism import torch_generator

        seed = observation.architecture.seed
        noise = torch_generator(seed, "defense", observation.server_round, observation.client)
        tensors = {
            name: tensor - 0.01 * torch.randn(tensor.shape, generator=noise, dtype=tensor.dtype)
            for name, tensor in observation.update.tensors.items()
        }
        cleaned = replace(observation, update=replace(observation.update, tensors=tensors))
        return PatchGradient().run(cleaned, rng, device)
