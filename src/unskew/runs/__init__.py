"""A run's folder: the experiment, where it ran, the partition, every round's results, and the model."""

from unskew.runs.failure import failure_of, write_failure
from unskew.runs.folder import RunFolder
from unskew.runs.lines import probe_record, spread_record
from unskew.runs.output_folder import (
    CHECKPOINTS,
    EMPTY,
    FINISHED,
    LONGEST_NAME,
    UNFINISHED,
    check_partition,
    check_same,
    claim,
    differences,
    differing_keys,
    free_folder,
    is_begun,
    is_edited,
    slug,
)
from unskew.runs.run_environment import environment
from unskew.runs.summary import model_file, site_record, sites_record, summarise, weights_sha256
from unskew.runs.timing import END, FIRST_ROUND, ROUNDS, time_of
from unskew.runs.write import write_whole, writing

__all__ = [
    "CHECKPOINTS",
    "EMPTY",
    "END",
    "FINISHED",
    "FIRST_ROUND",
    "LONGEST_NAME",
    "ROUNDS",
    "UNFINISHED",
    "RunFolder",
    "check_partition",
    "check_same",
    "claim",
    "differences",
    "differing_keys",
    "environment",
    "failure_of",
    "free_folder",
    "is_begun",
    "is_edited",
    "model_file",
    "probe_record",
    "site_record",
    "sites_record",
    "slug",
    "spread_record",
    "summarise",
    "time_of",
    "weights_sha256",
    "write_failure",
    "write_whole",
    "writing",
]
