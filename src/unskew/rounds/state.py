"""The state between two rounds: the models that the server sends and serves, and what clients keep."""

from __future__ import annotations

from unskew import engines
from unskew.client_tensors import ClientStore, client_store
from unskew.engines.job import Job, Task
from unskew.method import Method
from unskew.method_checks import check_instance, check_like_model, check_named_tensors
from unskew.result import State
from unskew.trial import Trial
from unskew.types import ServerState, Weights


def initial_state(method: Method, weights: Weights, *, round: int = 0) -> State:
    """The state before a round, with nothing remembered but the model."""
    memory = check_named_tensors("server.init", method.server.init(weights))
    return State(ServerState(weights, memory, round))


def model_to_send(method: Method, state: ServerState) -> Weights:
    """The model that the clients of the next round receive."""
    model = method.server.send(state)
    check_instance("server.send", model, Weights)
    check_like_model("server.send", model.params, state.weights.params)
    return model


def model_to_serve(method: Method, state: ServerState) -> Weights:
    """The model to evaluate, save and deploy after a round."""
    model = method.server.serve(state)
    check_instance("server.serve", model, Weights)
    return model


def store_of(trial: Trial) -> ClientStore:
    """Where a trial's clients keep what they keep."""
    limit = None if trial.client_memory is None else int(trial.client_memory * 1e9)
    return client_store(trial.pick_device(), limit, trial.client_files)


def recall(method: Method, engine: engines.Engine, state: State, task: Task) -> Job:
    """A client's task with what it remembers, or what the method begins with."""
    client = task.client
    memory = state.memories[client] if client in state.memories else engine.start_memory(method, task)
    return Job(task, memory, state.buffers.get(client), state.optimizers.get(client, {}))
