"""One paper, one file. A constructor's keyword arguments are the method's hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping

from unskew.methods.balancefl import balancefl
from unskew.methods.card import Card, Option, Work
from unskew.methods.ccvr import ccvr
from unskew.methods.class_balanced import class_balanced
from unskew.methods.controls import centralised, local_only
from unskew.methods.ema import ema
from unskew.methods.fedavg import fedavg
from unskew.methods.fedavgm import fedavgm
from unskew.methods.fedcodl import fedcodl
from unskew.methods.fedconcat import fedconcat
from unskew.methods.fedcurv import fedcurv
from unskew.methods.feddecorr import feddecorr
from unskew.methods.feddkd import feddkd
from unskew.methods.feddyn import feddyn
from unskew.methods.fedexp import fedexp
from unskew.methods.fedgela import fedgela
from unskew.methods.fedgf import fedgf
from unskew.methods.fedkd import fedekd, fedkd
from unskew.methods.fedlc import fedlc
from unskew.methods.fedlmd import fedlmd, fedlmd_switch, fedlmd_tf
from unskew.methods.fedmr import fedmr
from unskew.methods.fednova import fednova
from unskew.methods.fedntd import fedntd, fedntd_tf
from unskew.methods.fedopt import fedadagrad, fedadam, fedyogi
from unskew.methods.fedprox import fedprox
from unskew.methods.fedrs import fedrs
from unskew.methods.fedsam import fedsam
from unskew.methods.fedvls import fedvls
from unskew.methods.focal import focal
from unskew.methods.fpl import fpl
from unskew.methods.label_smoothing import label_smoothing
from unskew.methods.logit_adjustment import logit_adjustment, logit_adjustment_post_hoc
from unskew.methods.mofedsam import mofedsam
from unskew.methods.moon import moon
from unskew.methods.pkd import pkd
from unskew.methods.scaffold import scaffold
from unskew.methods.uniform import uniform
from unskew.methods.unnormalised import unnormalised
from unskew.trial import Trial

TEACHER = "one per batch, of the received model"
COPY = "one copy of the weights"
PLAIN, TAUGHT, LOOK = Work(), Work(teacher=True), Work(looks=1)


def _uphill(trial: Trial, options: Mapping[str, Option]) -> Work:
    return Work(points=2 if options["rho"] else 1)


def _fedgf(trial: Trial, options: Mapping[str, Option]) -> Work:
    return _uphill(trial, options) if options["c"] == 0 else Work(points=2)


def _fedcurv(trial: Trial, options: Mapping[str, Option]) -> Work:
    samples, size = int(options["samples"]), int(options["batch_size"])
    whole = -(-samples // size) * size  # the batch that has the last of them is passed through in full
    sizes = trial.federation.sizes
    return Work(gradients=float(sizes.clamp(max=whole).sum() / sizes.sum().clamp(min=1)))


def _everyone(trial: Trial, options: Mapping[str, Option]) -> Work | None:
    """For controls that train on all data in every round, which other methods do with all clients only."""
    return PLAIN if trial.cohort == trial.federation.clients else None


METHODS: dict[str, Card] = {
    "fedavg": Card(fedavg, work=PLAIN),
    "fedprox": Card(fedprox, memory="one copy of the weights", work=PLAIN),
    "fedrs": Card(fedrs, work=PLAIN),
    "fedlc": Card(fedlc, work=PLAIN),
    "logit-adjustment": Card(
        logit_adjustment,
        traffic="none; with prior=global C numbers down and up",
        sends="nothing; with prior=global its label counts",
        work=PLAIN,
    ),
    "calfat": Card(
        logit_adjustment,
        traffic="none; with prior=global C numbers down and up",
        sends="nothing; with prior=global its label counts",
        work=PLAIN,
    ),
    "logit-adjustment-post-hoc": Card(
        logit_adjustment_post_hoc, traffic="C numbers up", sends="its label counts", work=PLAIN
    ),
    "fedntd": Card(fedntd, passes=TEACHER, memory=COPY, work=TAUGHT),
    "fedntd-tf": Card(fedntd_tf, work=PLAIN),
    "fedlmd": Card(fedlmd, passes=TEACHER, memory=COPY, work=TAUGHT),
    "fedlmd-tf": Card(fedlmd_tf, work=PLAIN),
    "fedlmd-switch": Card(fedlmd_switch, passes=TEACHER, memory=COPY, traffic="one number down", work=TAUGHT),
    "fedvls": Card(fedvls, passes=TEACHER, memory=COPY, work=TAUGHT),
    "feded": Card(fedvls, passes=TEACHER, memory=COPY, work=TAUGHT),
    "fedkd": Card(fedkd, passes=TEACHER, memory=COPY, work=TAUGHT),
    "fedekd": Card(fedekd, passes=TEACHER, memory=COPY, work=TAUGHT),
    "feddkd": Card(feddkd, passes=TEACHER, memory=COPY, work=TAUGHT),
    "fedcodl": Card(
        fedcodl,
        passes=TEACHER,
        memory="one copy of the weights; with student_init=own three",
        traffic="one number down; with student_init=own one copy of the weights up",
        sends="nothing; with student_init=own where it started",
        work=TAUGHT,
    ),
    "label-smoothing": Card(label_smoothing, work=PLAIN),
    "focal": Card(
        focal,
        passes="none; with classwise one per round, of the received model over the client's data",
        traffic="none; with classwise C numbers down and 2 C up",
        sends="nothing; with classwise its label counts and how many of each class are right",
        work=lambda trial, options: LOOK if options["classwise"] else PLAIN,
    ),
    "class-balanced": Card(class_balanced, work=PLAIN),
    "moon": Card(
        moon,
        passes="two per batch, of the received and of the client's previous model",
        memory="the client's previous model, or as many as buffer says",
        work=lambda trial, options: Work(teacher=True, frozen=int(options["buffer"])),
    ),
    "feddecorr": Card(feddecorr, work=PLAIN),
    "fedmr": Card(
        fedmr,
        passes="none; with mu2 above 0 one per round over the client's data",
        traffic="none; with mu2 above 0 one feature per class down and up",
        sends="nothing; with mu2 above 0 its label counts and the mean feature of each of its classes",
        work=lambda trial, options: LOOK if options["mu2"] else PLAIN,
    ),
    "fpl": Card(
        fpl,
        passes="one per round over the client's data",
        traffic="one feature per class up; down up to half as many per class as clients in the cohort",
        sends="the mean feature of each of its classes, and so which classes it has",
        work=LOOK,
    ),
    "fedgela": Card(fedgela, work=PLAIN),
    "balancefl": Card(
        balancefl,
        passes="one per round, of the received model over the client's data",
        memory="a d x d matrix for d features",
        work=lambda trial, options: LOOK if options["p"] or options["prob"] == "official" else PLAIN,
    ),
    "uniform": Card(uniform, work=PLAIN),
    "unnormalised": Card(unnormalised, work=PLAIN),
    "fedavgm": Card(fedavgm, work=PLAIN),
    "fedadam": Card(fedadam, work=PLAIN),
    "fedyogi": Card(fedyogi, work=PLAIN),
    "fedadagrad": Card(fedadagrad, work=PLAIN),
    "fednova": Card(fednova, sends="its number of local steps", work=PLAIN),
    "fedexp": Card(fedexp, work=PLAIN),
    "ema": Card(ema, work=PLAIN),
    "scaffold": Card(
        scaffold,
        passes="none; with option=I one per round and its gradient, of the received model",
        memory="two vectors of the model's size: its control and everybody's",
        traffic="one vector of the model's size down and one up",
        sends="the change of its control, a mean gradient over its data",
        work=lambda trial, options: Work(gradients=1) if options["option"] == "I" else PLAIN,
    ),
    "feddyn": Card(
        feddyn, memory="a gradient estimate of the model's size, and one copy of the weights", work=PLAIN
    ),
    "fedcurv": Card(
        fedcurv,
        passes="one per round and its gradients, over `samples` samples",
        memory="four vectors of the model's size",
        traffic="two vectors of the model's size down and two up",
        sends="the diagonal Fisher information of its data, and that times its weights",
        work=_fedcurv,
    ),
    "fedsam": Card(fedsam, passes="one per step and its gradient: twice the work", memory=COPY, work=_uphill),
    "mofedsam": Card(
        mofedsam,
        passes="one per step and its gradient: twice the work",
        memory="one copy of the weights and one vector of their size",
        traffic="one vector of the model's size down",
        sends="its number of local steps",
        work=_uphill,
    ),
    "fedgf": Card(
        fedgf,
        passes="one per step and its gradient: twice the work",
        memory="two copies of the weights",
        traffic="one vector of the model's size and one number down",
        work=_fedgf,
    ),
    "pkd": Card(
        pkd,
        passes="one per expert and batch in the last stage; one over the data after the warm-up",
        memory="the experts",
        traffic="experts down, and up while they train; C (C + 2) numbers up once",
        sends="its label counts, and by class its summed probabilities and right answers; where groups are "
        "given only its samples in each",
    ),
    "fedconcat": Card(
        fedconcat,
        passes="one of every cluster's encoder over the data",
        memory="every cluster's encoder",
        traffic="every cluster's encoder down once; then the last layer alone; C numbers up once",
        sends="its label counts, with noise where epsilon is given",
    ),
    "ccvr": Card(
        ccvr,
        passes="one over the data at the end",
        traffic="C (d^2 + d + 1) numbers up once; with covariance=diagonal C (2 d + 1)",
        sends="its label counts, and by class the mean and covariance of its features",
    ),
    "centralised": Card(centralised, sends="all of its data: a control", work=_everyone),
    "local-only": Card(local_only, traffic="none, not even the model", work=_everyone),
}

__all__ = [
    "METHODS",
    "Card",
    "balancefl",
    "ccvr",
    "centralised",
    "class_balanced",
    "ema",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedcodl",
    "fedconcat",
    "fedcurv",
    "feddecorr",
    "feddkd",
    "feddyn",
    "fedekd",
    "fedexp",
    "fedgela",
    "fedgf",
    "fedkd",
    "fedlc",
    "fedlmd",
    "fedlmd_switch",
    "fedlmd_tf",
    "fedmr",
    "fednova",
    "fedntd",
    "fedntd_tf",
    "fedprox",
    "fedrs",
    "fedsam",
    "fedvls",
    "fedyogi",
    "focal",
    "fpl",
    "label_smoothing",
    "local_only",
    "logit_adjustment",
    "logit_adjustment_post_hoc",
    "mofedsam",
    "moon",
    "pkd",
    "scaffold",
    "uniform",
    "unnormalised",
]
