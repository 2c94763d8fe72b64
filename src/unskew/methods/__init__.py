"""One paper, one file. A constructor's keyword arguments are the method's hyperparameters.

A method is listed by the line that imports it here; all else about it is in its file.
"""

from __future__ import annotations

from unskew.methods.card import Card as Card
from unskew.methods.card import written

# In the order in which they are listed.
# isort: off
from unskew.methods.fedavg import fedavg as fedavg
from unskew.methods.steady import steady as steady
from unskew.methods.fedprox import fedprox as fedprox
from unskew.methods.fedrs import fedrs as fedrs
from unskew.methods.fedlc import fedlc as fedlc
from unskew.methods.logit_adjustment import logit_adjustment as logit_adjustment
from unskew.methods.logit_adjustment import logit_adjustment_post_hoc as logit_adjustment_post_hoc
from unskew.methods.calfat import calfat as calfat
from unskew.methods.fedntd import fedntd as fedntd, fedntd_tf as fedntd_tf
from unskew.methods.fedlmd import fedlmd as fedlmd, fedlmd_tf as fedlmd_tf, fedlmd_switch as fedlmd_switch
from unskew.methods.fedvls import fedvls as fedvls
from unskew.methods.fedkd import fedkd as fedkd, fedekd as fedekd
from unskew.methods.feddkd import feddkd as feddkd
from unskew.methods.fedcodl import fedcodl as fedcodl
from unskew.methods.label_smoothing import label_smoothing as label_smoothing
from unskew.methods.focal import focal as focal
from unskew.methods.class_balanced import class_balanced as class_balanced
from unskew.methods.moon import moon as moon
from unskew.methods.feddecorr import feddecorr as feddecorr
from unskew.methods.fedrcl import fedrcl as fedrcl
from unskew.methods.fedmr import fedmr as fedmr
from unskew.methods.fpl import fpl as fpl
from unskew.methods.fedgela import fedgela as fedgela
from unskew.methods.balancefl import balancefl as balancefl
from unskew.methods.uniform import uniform as uniform
from unskew.methods.unnormalised import unnormalised as unnormalised
from unskew.methods.fedavgm import fedavgm as fedavgm
from unskew.methods.fedacg import fedacg as fedacg
from unskew.methods.fedopt import fedadam as fedadam, fedyogi as fedyogi, fedadagrad as fedadagrad
from unskew.methods.fednova import fednova as fednova
from unskew.methods.fedexp import fedexp as fedexp
from unskew.methods.ema import ema as ema
from unskew.methods.wima import wima as wima
from unskew.methods.clip import clip as clip
from unskew.methods.nnm import nnm as nnm
from unskew.methods.median import median as median
from unskew.methods.trimmed_mean import trimmed_mean as trimmed_mean
from unskew.methods.krum import krum as krum
from unskew.methods.geometric_median import geometric_median as geometric_median
from unskew.methods.dp import dp as dp
from unskew.methods.scaffold import scaffold as scaffold
from unskew.methods.feddyn import feddyn as feddyn
from unskew.methods.fedcurv import fedcurv as fedcurv
from unskew.methods.fedcm import fedcm as fedcm
from unskew.methods.fedswa import fedswa as fedswa, fedmoswa as fedmoswa
from unskew.methods.fedsam import fedsam as fedsam
from unskew.methods.mofedsam import mofedsam as mofedsam
from unskew.methods.fedgf import fedgf as fedgf
from unskew.methods.pkd import pkd as pkd
from unskew.methods.fedconcat import fedconcat as fedconcat
from unskew.methods.ccvr import ccvr as ccvr
from unskew.methods.controls import centralised as centralised, local_only as local_only
# isort: on

METHODS: dict[str, Card] = written()
