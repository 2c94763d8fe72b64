"""Which method to take, by what was measured where labels are skewed alike."""

from unskew.advice.advising import Advice, advise

__all__ = ["Advice", "advise"]
