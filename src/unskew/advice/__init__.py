"""Advice on which method to take, by measurements on federations with a similar label skew."""

from unskew.advice.advising import advise
from unskew.advice.recommendation import Advice

__all__ = ["Advice", "advise"]
