"""Text as plain text in LaTeX, Markdown and CSV files, whatever characters it has."""

from __future__ import annotations

import contextlib
import math
import re
import unicodedata

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "±": r"$\pm$", "—": r"\textemdash{}",
    "≤": r"$\leq$",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Escape text for LaTeX; a question mark replaces letters that pdflatex does not know."""
    letters = (_LATEX.get(each, each if _known(each) else "?") for each in _one_line(text))
    return re.sub(r"-(?=-)", "-{}", "".join(letters))  # two hyphens would become a dash


def _known(letter: str) -> bool:
    accented = ord(letter) < 0x100 and letter.isalpha() and unicodedata.decomposition(letter)
    return " " <= letter <= "~" or bool(accented) or letter in "ßæøÆØ"


def escape_comment(text: str) -> str:
    return "".join(each if 32 <= ord(each) < 127 else "?" for each in _one_line(text))


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~$!])", r"\\\1", _one_line(text).replace("&", "&amp;"))


def escape_csv(text: str) -> str:
    """Put a quote before text that a spreadsheet would take for a formula."""
    with contextlib.suppress(ValueError):
        if math.isfinite(float(text)):
            return text
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
