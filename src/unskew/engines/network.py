"""The trial's model in its modes: training, frozen, under test. Weights are arguments of every call."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from unskew.data.augment import normalise
from unskew.errors import UserError
from unskew.models import frozen_norms, frozen_tensors, level_ends, moving_norms, seen_levels
from unskew.parts.heads import Head, find_head
from unskew.trial import Trial, weights_of
from unskew.types import Inputs, Out, Params, Tensors, Weights


class Network:
    """The trial's model in training and evaluation mode, and with BatchNorm in the other mode than the rest,
    for weights that are passed with every call."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.statistics = trial.statistics
        self.bf16 = trial.pick_precision() == "bf16"
        self.train_module = trial.build().to(device).train()
        for part in frozen_norms(self.train_module).values():
            part.eval()
        self.normed = bool(moving_norms(self.train_module))
        self.frozen_tensors = frozen_tensors(self.train_module)
        """Frozen parameters, and the statistics of frozen BatchNorms. They stay in the model: they are
        neither sent nor stored."""
        self.eval_module = copy.deepcopy(self.train_module).eval()
        # The same two modules with BatchNorm switched the other way: training by the running statistics, and
        # evaluation by those of the batch. They are the same objects if no BatchNorm normalises by batches.
        self.train_running_stats, self.eval_batch_stats = self.train_module, self.eval_module
        if self.normed:
            self.train_running_stats = _with_batch_norms(copy.deepcopy(self.train_module), training=False)
            self.eval_batch_stats = _with_batch_norms(copy.deepcopy(self.eval_module), training=True)
        self.batch_teacher = self.normed and trial.teacher == "batch"
        self.classes = len(trial.federation.dataset.classes)
        modules = (self.train_module, self.eval_module, self.train_running_stats, self.eval_batch_stats)
        self._places = {module: _places(module) for module in modules}
        self.held: list[HeldTensors] | None = None
        """What the modules held before the passes of the present `holding_weights`, in their order."""
        inputs = trial.federation.dataset.inputs
        self.depthwise = any(
            isinstance(part, nn.Conv2d) and part.groups > 1 for part in self.train_module.modules()
        )
        """Whether the model has depthwise convolutions, for which cuDNN takes seconds to find a kernel."""
        self.channels_last = inputs.kind == "image" and _gains(self.eval_module, inputs, device, self.bf16)
        self.early = trial.fast and self.bf16 and self.channels_last
        """Whether prefetched inputs are already in bfloat16 and channels last, as the first layer needs
        them."""
        if self.channels_last and device.type == "cuda":  # else every pass would lay out the weights anew
            for module in set(modules):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        if not isinstance(trial.model, str):
            dataset = trial.federation.dataset
            batch = normalise(dataset.test.inputs[[0, -1]].to(device), dataset.mean, dataset.std)
            self._check_reads(batch)
            self._check_state(batch)

    def _check_reads(self, batch: Tensor) -> None:
        """Refuse a user's own model that cannot read the data."""
        weights = weights_of(self.train_module)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.evaluate(weights.scratch(), batch)
        except UserError:
            raise
        except Exception as error:
            for name, value in self.train_module.named_parameters():
                if value.is_floating_point() and value.dtype != torch.float32:
                    raise UserError(
                        f"'{name}' of the model is of {value.dtype} and the data of {batch.dtype}: call "
                        "the model's .float() first."
                    ) from error
            said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(".")
            raise UserError(
                f"the model cannot read a batch of shape {list(batch.shape)} ({said}): "
                f"let it read samples of shape {list(batch.shape[1:])}."
            ) from error

    def _check_state(self, batch: Tensor) -> None:
        """Refuse a user's own model that changes a buffer outside of its state dict from batch to batch:
        clients would share it."""
        module = copy.deepcopy(self.train_module)
        outside = {name for name, _ in module.named_buffers()} - module.state_dict().keys()
        if not outside:
            return
        before = {name: value.clone() for name, value in module.named_buffers() if name in outside}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(batch)
        after = dict(module.named_buffers())
        for name, value in before.items():
            if name not in after or not torch.equal(value, after[name]):
                raise UserError(
                    f"'{name}' of the model changes in training but is a buffer with persistent=False, which "
                    "all clients would share: register it without that."
                )

    def holding_weights(self) -> HoldingWeights:
        """Return a context that leaves the weights of passes with gradient in the model until it ends, when
        the gradient has been taken: a model that computes activations again in its backward pass
        (`torch.utils.checkpoint`) reads them there."""
        return HoldingWeights(self)

    @torch.no_grad()
    def load_frozen(self, frozen: Tensors) -> None:
        """Replace the model's frozen tensors by those of the machine that leads the run. Made on this one
        they could differ: a model need not draw them from the trial's seed, and another kind of CPU may round
        differently."""
        for module in {self.train_module, self.eval_module, self.train_running_stats, self.eval_batch_stats}:
            own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
            for name, value in frozen.items():
                own[name].copy_(value)

    @cached_property
    def head(self) -> Head:
        return find_head(self.train_module, self.classes)

    @cached_property
    def _level_ends(self) -> set[nn.Module]:
        return {*level_ends(self.train_module), *level_ends(self.train_running_stats)}

    @property
    def self_normalising(self) -> bool:
        """Whether a test batch is normalised by its own statistics."""
        return self.normed and self.statistics != "average"

    def train(self, weights: Weights, x: Tensor) -> Out:
        """Run the model in training mode, which moves the running statistics in `weights.buffers`."""
        if self.normed and x.shape[0] == 1:
            # One sample has no batch statistics: normalise by the running ones, if there are any.
            return (
                self._paired(self.train_module, weights, x)
                if self.statistics == "batch"
                else self._run(self.train_running_stats, weights, x)
            )
        return self._run(self.train_module, weights, x)

    def train_with_levels(self, weights: Weights, x: Tensor) -> tuple[Out, tuple[Tensor, ...]]:
        """Run the model in training mode, and return also the outputs of its levels, averaged over the
        image."""
        with seen_levels(self._level_ends) as seen:
            out = self.train(weights, x)
        maps = [value.flatten(2).mean(2) if value.ndim > 2 else value for value in seen]
        return out, tuple(value[: len(x)].float() for value in maps)  # one may have run with its copy

    @torch.no_grad()
    def frozen(self, weights: Weights, x: Tensor) -> Out:
        """Run the model in evaluation mode without gradient, with BatchNorm as the trial sets it for
        teachers."""
        return self._normalised_by_batch(weights, x) if self.batch_teacher else self.evaluate(weights, x)

    def evaluate(self, weights: Weights, x: Tensor) -> Out:
        """Run the model in evaluation mode."""
        if self.normed and self.statistics == "batch" and x.shape[0] == 1:
            return self._paired(self.eval_module, weights, x)
        return self._run(self.eval_module, weights, x)

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """Run the last linear layer alone."""
        return self.head(params, features)

    @torch.no_grad()
    def test(self, weights: Weights, x: Tensor) -> Out:
        """Run the model as the global one is tested."""
        return (
            self._normalised_by_batch(weights, x)
            if self.self_normalising
            else self._run(self.eval_module, weights, x)
        )

    def _normalised_by_batch(self, weights: Weights, x: Tensor) -> Out:
        """Run the model in evaluation mode, but normalised by the batch's statistics; the running ones do not
        change."""
        scratch = weights.scratch()
        return (
            self._paired(self.eval_batch_stats, scratch, x)
            if x.shape[0] == 1
            else self._run(self.eval_batch_stats, scratch, x)
        )

    def _run(self, module: nn.Module, weights: Weights, x: Tensor) -> Out:
        if self.channels_last:
            x = _channels_last(x)
        with torch.autocast(x.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            out = self._call(module, weights, x)
        return Out(out.features.float(), out.logits.float()) if self.bf16 else out

    def _call(self, module: nn.Module, weights: Weights, x: Tensor) -> Out:
        """Run a module with these weights, as torch.func.functional_call does, which looks the places up at
        every call: for a small model that takes as long as its forward pass."""
        places = self._places[module]
        held = places, [store[key] for store, key, _ in places]
        given = weights.buffers | weights.params
        later = self.held if torch.is_grad_enabled() else None
        try:
            for store, key, name in places:
                if name in given:  # a frozen parameter keeps its value unless another is given
                    store[key] = given[name]
            out: Out = module(x)
        finally:
            if later is None:
                _put_back(held)
            else:
                later.append(held)
        return out

    def _paired(self, module: nn.Module, weights: Weights, x: Tensor) -> Out:
        """Run the model on one sample and a copy of it, which does not change the batch's mean and variance:
        BatchNorm accepts no fewer than two samples."""
        out = self._run(module, weights, torch.cat([x, x]))
        return Out(out.features[:1], out.logits[:1])


ModulePlace = tuple[dict[str, Tensor | None], str, str]
"""The place of a tensor in a module: the dictionary that has it, the key there, and the tensor's name."""


HeldTensors = tuple[list[ModulePlace], list[Tensor | None]]
"""Places in a module, and the tensors that were there."""


class HoldingWeights:
    """The context of `Network.holding_weights`. It is entered at every step, so it is not a generator."""

    __slots__ = ("_before", "_network")

    def __init__(self, network: Network) -> None:
        self._network = network

    def __enter__(self) -> None:
        self._before, self._network.held = self._network.held, []

    def __exit__(self, *_: object) -> None:
        held, self._network.held = self._network.held, self._before
        for each in reversed(held or ()):
            _put_back(each)


def _put_back(held: HeldTensors) -> None:
    for (store, key, _), value in zip(*held, strict=True):
        store[key] = value


def _places(module: nn.Module) -> list[ModulePlace]:
    found: list[ModulePlace] = []
    for name in module.state_dict():
        path, _, key = name.rpartition(".")
        part = module.get_submodule(path)
        store = part._parameters if key in part._parameters else part._buffers
        found.append((cast("dict[str, Tensor | None]", store), key, name))
    names = {name for name, _ in module.named_parameters()}
    for name, value in module.named_parameters(remove_duplicate=False):
        if name not in names and value.requires_grad:
            raise UserError(f"'{name}' of the model is another layer's weight too: give it one of its own.")
    return found


def _gains(module: nn.Module, inputs: Inputs, device: torch.device, bf16: bool) -> bool:
    """Say whether channels_last images make a model faster. Measured on a CPU, one thread, whole steps: plain
    and BatchNorm networks take 0.7 to 0.95 of the time, those with GroupNorm 1.2. On an H200 it is the layout
    of the tensor cores in bfloat16; in fp32 and tf32 the deterministic kernels for it are half as fast."""
    if device.type == "cuda" and not bf16:
        return False
    parts = list(module.modules())
    if not any(isinstance(part, nn.Conv2d) for part in parts):
        return False
    if any(isinstance(part, nn.GroupNorm) for part in parts):
        return False
    try:  # a user's own module may rely on the other layout, with x.view(len(x), -1)
        with torch.no_grad():
            module(_channels_last(torch.zeros(2, *inputs.shape, device=device)))
    except RuntimeError:
        return False
    return True


def _channels_last(x: Tensor) -> Tensor:
    # Not x.contiguous(), for which both layouts are the same if there is one channel, so that the layers
    # after it would choose the other layout.
    return x if x.stride(1) == 1 else torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


def _with_batch_norms(module: nn.Module, *, training: bool) -> nn.Module:
    for part in moving_norms(module):
        part.train(training)
    return module
