"""One paper, one file. A constructor's keyword arguments are the method's hyperparameters."""

from __future__ import annotations

from unskew.methods.balancefl import balancefl
from unskew.methods.card import Card
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

TEACHER = "one per batch, of the received model"
COPY = "one copy of the weights"

METHODS: dict[str, Card] = {
    "fedavg": Card(fedavg),
    "fedprox": Card(fedprox, memory="one copy of the weights"),
    "fedrs": Card(fedrs),
    "fedlc": Card(fedlc),
    "logit-adjustment": Card(
        logit_adjustment,
        traffic="none; with prior=global C numbers down and up",
        sends="nothing; with prior=global its label counts",
    ),
    "calfat": Card(
        logit_adjustment,
        traffic="none; with prior=global C numbers down and up",
        sends="nothing; with prior=global its label counts",
    ),
    "logit-adjustment-post-hoc": Card(
        logit_adjustment_post_hoc, traffic="C numbers up", sends="its label counts"
    ),
    "fedntd": Card(fedntd, passes=TEACHER, memory=COPY),
    "fedntd-tf": Card(fedntd_tf),
    "fedlmd": Card(fedlmd, passes=TEACHER, memory=COPY),
    "fedlmd-tf": Card(fedlmd_tf),
    "fedlmd-switch": Card(fedlmd_switch, passes=TEACHER, memory=COPY, traffic="one number down"),
    "fedvls": Card(fedvls, passes=TEACHER, memory=COPY),
    "feded": Card(fedvls, passes=TEACHER, memory=COPY),
    "fedkd": Card(fedkd, passes=TEACHER, memory=COPY),
    "fedekd": Card(fedekd, passes=TEACHER, memory=COPY),
    "feddkd": Card(feddkd, passes=TEACHER, memory=COPY),
    "fedcodl": Card(
        fedcodl,
        passes=TEACHER,
        memory="one copy of the weights; with student_init=own three",
        traffic="one number down; with student_init=own one copy of the weights up",
        sends="nothing; with student_init=own where it started",
    ),
    "label-smoothing": Card(label_smoothing),
    "focal": Card(
        focal,
        passes="none; with classwise one per round, of the received model over the client's data",
        traffic="none; with classwise C numbers down and 2 C up",
        sends="nothing; with classwise its label counts and how many of each class are right",
    ),
    "class-balanced": Card(class_balanced),
    "moon": Card(
        moon,
        passes="two per batch, of the received and of the client's previous model",
        memory="the client's previous model, or as many as buffer says",
    ),
    "feddecorr": Card(feddecorr),
    "fedmr": Card(
        fedmr,
        passes="none; with mu2 above 0 one per round over the client's data",
        traffic="none; with mu2 above 0 one feature per class down and up",
        sends="nothing; with mu2 above 0 its label counts and the mean feature of each of its classes",
    ),
    "fpl": Card(
        fpl,
        passes="one per round over the client's data",
        traffic="one feature per class up; down up to half as many per class as clients in the cohort",
        sends="the mean feature of each of its classes, and so which classes it has",
    ),
    "fedgela": Card(fedgela),
    "balancefl": Card(
        balancefl,
        passes="one per round, of the received model over the client's data",
        memory="a d x d matrix for d features",
    ),
    "uniform": Card(uniform),
    "unnormalised": Card(unnormalised),
    "fedavgm": Card(fedavgm),
    "fedadam": Card(fedadam),
    "fedyogi": Card(fedyogi),
    "fedadagrad": Card(fedadagrad),
    "fednova": Card(fednova, sends="its number of local steps"),
    "fedexp": Card(fedexp),
    "ema": Card(ema),
    "scaffold": Card(
        scaffold,
        passes="none; with option=I one per round and its gradient, of the received model",
        memory="two vectors of the model's size: its control and everybody's",
        traffic="one vector of the model's size down and one up",
        sends="the change of its control, a mean gradient over its data",
    ),
    "feddyn": Card(feddyn, memory="a gradient estimate of the model's size, and one copy of the weights"),
    "fedcurv": Card(
        fedcurv,
        passes="one per round and its gradients, over `samples` samples",
        memory="four vectors of the model's size",
        traffic="two vectors of the model's size down and two up",
        sends="the diagonal Fisher information of its data, and that times its weights",
    ),
    "fedsam": Card(fedsam, passes="one per step and its gradient: twice the work", memory=COPY),
    "mofedsam": Card(
        mofedsam,
        passes="one per step and its gradient: twice the work",
        memory="one copy of the weights and one vector of their size",
        traffic="one vector of the model's size down",
        sends="its number of local steps",
    ),
    "fedgf": Card(
        fedgf,
        passes="one per step and its gradient: twice the work",
        memory="two copies of the weights",
        traffic="one vector of the model's size and one number down",
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
    "centralised": Card(centralised, sends="all of its data: a control"),
    "local-only": Card(local_only, traffic="none, not even the model"),
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
