"""All named errors of dbelief, as one class hierarchy.

DbeliefError
├── UserError             can be corrected by the user: exit code 2
│   ├── JobError          an invalid field of the job file, or an invalid file
│   ├── DataError         a data file that is missing, truncated, or not as the job describes it
│   └── ModelError        a model that cannot be built, or violates its contract
└── RuntimeFailure        something failed while running: exit code 1
    ├── Rejected          a peer rejected the request (fenced, wrong length, sequence gap)
    │   ├── Moved         the target is on another process or has another incarnation: locate it and retry there
    │   ├── Deposed       another coordinator leads the job: retry, and reach that one; exit code 75
    │   └── ResourceExhausted  no capacity now; some may become free
    ├── Unavailable       a peer did not answer within its deadline
    ├── RankFailure       another rank of this replica failed
    ├── NonFinite         a gradient holds NaN or infinity
    ├── WriteFailed       a file could not be written, for example because the disk is full
    ├── StorageError      a store of objects refused a request: no such bucket, access denied, full
    ├── EvaluationFailed  the model is trained and written, and a last evaluation of it failed: exit code 3
    ├── SnapshotError     a snapshot that is damaged, of another job, or of a newer format
    │   └── CorruptSnapshot    a file of it is missing or damaged: an older snapshot may be complete
    └── Interrupted       Ctrl-C was pressed, or the process was asked to end: exit code 130

A wrong argument to a function is a ValueError in that function; a violated invariant is an AssertionError.
Messages are one line and name the cause and the location.
"""

from typing import Any

UNFINISHED = 75
"""Exit code of a process that leaves a job to another process, before its end: EX_TEMPFAIL of sysexits.h.

A scheduler that counts code 0 as the job's end (a Job of Kubernetes) starts another process for it.
"""


class DbeliefError(Exception):
    """Base class of all dbelief errors; `exit_code` is the exit code of a command that fails with it."""

    exit_code = 1


class UserError(DbeliefError):
    """An error that the user can correct: in a file, a flag or a model."""

    exit_code = 2


class JobError(UserError):
    """The job file or one of its fields is invalid."""


class DataError(UserError):
    """A data file is missing, truncated, or not as the job describes it."""


class ModelError(UserError):
    """A model cannot be built, or violates its contract."""


class RuntimeFailure(DbeliefError):
    """Something failed while running."""


class Rejected(RuntimeFailure):
    """A peer rejected the request; the message is the peer's reason."""


class Moved(Rejected):
    """The target is on another process or has another incarnation: locate it and retry there."""


class Deposed(Rejected):
    """Another coordinator leads the job; a caller retries, and reaches that one."""

    exit_code = UNFINISHED


class ResourceExhausted(Rejected):
    """No capacity is available now; some may become free."""


class Unavailable(RuntimeFailure):
    """A peer did not answer within its deadline."""


class RankFailure(RuntimeFailure):
    """Another rank of this replica failed, and with it all ranks; the message names the rank and the cause.

    `kind` is the class name of the error that the rank failed with.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class NonFinite(RuntimeFailure):
    """A gradient holds NaN or infinity; the message names the tensor."""


class WriteFailed(RuntimeFailure):
    """A file could not be written, for example because the disk is full; a previous file of that name is kept."""


class StorageError(RuntimeFailure):
    """A store of objects refused a request, for example because access is denied; the message names URL and cause."""


class EvaluationFailed(RuntimeFailure):
    """A job's model is trained and written, and its last validation or test failed; `--resume` repeats only that.

    `run` is the run, as `dbelief.train` returns one.
    """

    exit_code = 3

    def __init__(self, message: str, run: Any = None) -> None:
        super().__init__(message)
        self.run = run


class SnapshotError(RuntimeFailure):
    """A snapshot is damaged, belongs to another job, or has a newer format."""


class CorruptSnapshot(SnapshotError):
    """A file of a snapshot is missing or damaged: an older snapshot may be complete."""


class Interrupted(RuntimeFailure):
    """Ctrl-C was pressed before there was a job to stop."""

    exit_code = 130
