"""The state between two rounds: the models that the server sends and serves, and what clients keep."""

from __future__ import annotations

from unskew import engines
from unskew.client_tensors import ClientStore, client_store
from unskew.engines.job import CLIENT_ERRORS, Failed, Job, Task
from unskew.method import Method
from unskew.method_checks import check_instance, check_like_model, check_named_tensors
from unskew.result import State
from unskew.trial import Trial
from unskew.types import ServerState, Weights


def initial_state(method: Method, weights: Weights, *, round: int = 0) -> State:
    """Return the state before a round in which nothing is kept but the model."""
    memory = check_named_tensors("server.init", method.server.init(weights))
    return State(ServerState(weights, memory, round))


def model_to_send(method: Method, state: ServerState) -> Weights:
    """Return the model that clients receive in the next round."""
    model = method.server.send(state)
    check_instance("server.send", model, Weights)
    check_like_model("server.send", model.params, state.weights.params)
    return model


def model_to_serve(method: Method, state: ServerState) -> Weights:
    """Return the model to evaluate, save and deploy after a round."""
    model = method.server.serve(state)
    check_instance("server.serve", model, Weights)
    return model


def store_of(trial: Trial) -> ClientStore:
    """Return the store in which a trial's clients keep tensors between rounds."""
    limit = None if trial.client_memory is None else int(trial.client_memory * 1e9)
    return client_store(trial.pick_device(), limit, trial.client_files)


def recall(method: Method, engine: engines.Engine, state: State, task: Task) -> Job | Failed:
    """Make a client's job from its task and what it keeps; if it keeps nothing yet, from the method's initial
    memory, unless that fails."""
    client = task.client
    try:
        memory = state.memories[client] if client in state.memories else engine.start_memory(method, task)
    except CLIENT_ERRORS as error:
        return Failed.of(task, "prepare", error)
    return Job(task, memory, state.buffers.get(client), state.optimizers.get(client, {}))
