"""`unskew compare`: several methods under the same conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import options
from unskew.cli.progress import Watch
from unskew.cli.show import console, cost_grid, paired_grid, result_grid
from unskew.errors import UserError
from unskew.experiment import Experiment, Prepared, load_data, partition, prepare
from unskew.runs import Json, claim, comparison, free_folder, slug, to_json, write_whole
from unskew.sweep import Cell, Outcome, sweep


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD", help="Methods of `unskew methods`, such as fedprox:mu=0.1."),
    ],
    experiment: Annotated[
        Path | None, options.option("--experiment", "PATH", "An experiment file; flags change it.")
    ] = None,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    clients: options.Clients = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    cohort: options.Cohort = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    augment: options.Augment = None,
    seeds: Annotated[str | None, options.option("--seeds", "NUMBERS", "Such as 1,2,3 or 1-3.")] = None,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    precision: options.Precision = None,
    probe: options.Probe = None,
    out: options.Out = None,
    data: options.Data = None,
    log: options.Log = None,
    table: options.TablePerRound = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    set_: options.Set = None,
) -> None:
    """Train several methods on the same partition, initial weights and batches, over several seeds."""
    names = [slug(method) for method in methods]
    if len(set(names)) < len(names):
        raise UserError("a method is named twice: name each once, or give it different hyperparameters.")
    for assignment in set_ or []:
        setting = assignment.partition("=")[0].partition(".")[0].strip()
        if setting == "method":
            raise UserError(
                f"'{assignment}' does not say for which method: write hyperparameters after a method's name, "
                "such as fedprox:mu=0.1."
            )
        if setting == "seed" and seeds is not None:
            raise UserError(f"'{assignment}' and --seeds are both given: keep one.")
    base = options.settings(
        experiment,
        set_,
        dataset=dataset,
        augment=augment,
        skew=skew,
        clients=clients,
        model=model,
        rounds=rounds,
        cohort=cohort,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        engine=engine,
        device=device,
        workers=workers,
        precision=precision,
        data=data,
        probe=options.probe_period(probe),
    )
    base.pop("method", None)
    first = Experiment(**base)
    loggers = options.loggers(log)
    loaded = load_data(first)
    cells = []
    for seed in [first.seed] if seeds is None else options.seed_list(seeds):
        federation = partition(Experiment(**{**base, "seed": seed}), loaded)
        for method in methods:
            spec = Experiment(**{**base, "seed": seed, "method": options.method_table(method)})
            cells.append((method, prepare(spec, loaded, federation)))
    settings = cells[0][1].experiment
    folder = out or free_folder("-".join(["compare", *settings.words()[1:-1]]))
    claim(folder)
    planned = [_cell(folder, method, prepared) for method, prepared in cells]
    plan: dict[str, Json] = {
        "runs": [cell.folder.name for cell in planned],
        "rounds": settings.budget.rounds,
    }
    write_whole(folder / "plan.json", to_json(plan))  # for who watches
    with Watch(len(cells) * settings.budget.rounds, cells=len(cells), quiet=quiet, table=table) as watch:
        outcomes = sweep(planned, watch, loggers)
    by_method: dict[str, list[Outcome]] = {method: [] for method in methods}
    for (method, _), outcome in zip(cells, outcomes, strict=True):
        by_method[method].append(outcome)
    numbers = [prepared.experiment.seed for method, prepared in cells if method == methods[0]]
    whole = comparison(settings, numbers, by_method) | {"run_dir": str(folder)}
    write_whole(folder / "compare.json", to_json(whole))
    if json:
        print(to_json(whole, indent=None))
        return
    results = [(method, [result for result, _ in each]) for method, each in by_method.items()]
    screen = console()
    screen.print(f"{settings.title()}, {'seeds' if len(numbers) > 1 else 'seed'} {seeds or first.seed}")
    grids = [result_grid(results), cost_grid(list(by_method.items()))]
    if len(numbers) > 1 and isinstance(pairs := whole["comparisons"], dict) and pairs:
        grids.insert(1, paired_grid(methods[0], pairs))
    for grid in grids:
        screen.print()
        screen.print(grid)
    for note in dict.fromkeys(note for _, runs in results for run in runs for note in run.notes):
        screen.print(f"\nnote: {note}")
    screen.print(f"\nrun folders: {folder}", soft_wrap=True)


def _cell(folder: Path, method: str, prepared: Prepared) -> Cell:
    seed = prepared.experiment.seed
    return Cell(f"{method} seed {seed}", folder / f"{slug(method)}-seed{seed}", prepared)
