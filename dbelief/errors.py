"""Every failure that dbelief names, as one tree.

DbeliefError
├── Mistake              a person can put it right: exit code 2
│   ├── JobError         a field of the job file, or the file itself
│   ├── DataError        a data file that is missing, torn, or not what the job says
│   └── ModelError       a model that cannot be built, or breaks its contract
└── Failure              something broke while running: exit code 1
    ├── Refused          a peer answered, and said no (fenced, wrong length, sequence gap)
    │   ├── Moved        what was asked for lives elsewhere, or in another life, by now: find out where, and ask there
    │   └── Full         there is no place now; one may become free
    ├── Unreachable      a peer did not answer within its deadline
    ├── NonFinite        a gradient holds NaN or infinity
    ├── WriteFailed       a file that could not be written: the disk is full, say
    ├── SnapshotError    a snapshot that is torn, foreign, or of a newer format
    │   └── Torn         a file of it is missing or damaged: an older one may be whole
    └── Interrupted      somebody pressed Ctrl-C: exit code 130

A wrong argument to a function is a ValueError at its door; a broken invariant is an AssertionError.
Messages are one line and name the cause and the place.
"""


class DbeliefError(Exception):
    """Base of all of dbelief's own errors; `exit_code` is what a command ends with."""

    exit_code = 1


class UserError(DbeliefError):
    """A person can put this right: a file, a flag, a model."""

    exit_code = 2


class JobError(UserError):
    """The job file, or one of its fields, is wrong."""


class DataError(UserError):
    """A data file is missing, torn, or not what the job says it is."""


class ModelError(UserError):
    """A model cannot be built, or breaks its contract."""


class RuntimeFailure(DbeliefError):
    """Something broke while running."""


class Rejected(RuntimeFailure):
    """A peer answered, and said no; the message is the peer's reason."""


class Moved(Rejected):
    """What was asked for lives elsewhere, or in another life, by now: find out where, and ask there."""


class ResourceExhausted(Rejected):
    """There is no place now; one may become free."""


class Unavailable(RuntimeFailure):
    """A peer did not answer within its deadline."""


class RankFailure(RuntimeFailure):
    """Another rank of this replica failed, and with it all of them; the message names it and its cause.

    `kind` is the name of the error that it failed of.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class NonFinite(RuntimeFailure):
    """A gradient holds NaN or infinity; the message names the tensor."""


class WriteFailed(RuntimeFailure):
    """A file could not be written, for the disk is full, say; what had its name stays as it was."""


class SnapshotError(RuntimeFailure):
    """A snapshot is torn, belongs to another job, or has a newer format."""


class CorruptSnapshot(SnapshotError):
    """A file of a snapshot is missing or damaged: an older snapshot may be whole."""


class Interrupted(RuntimeFailure):
    """Somebody pressed Ctrl-C before there was anything to end."""

    exit_code = 130
