"""Which method to take, by what was measured where labels are skewed alike."""

from unskew.advice.advising import advise
from unskew.advice.recommendation import Advice

__all__ = ["Advice", "advise"]
