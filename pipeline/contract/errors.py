"""What a user can get wrong. Each message is one line: the value, the rule it breaks, the next move.

    PipelineError                exit code 2
    ├── ManifestError            a manifest or a --set that does not fit the schema
    ├── DocumentError            a source of documents that cannot be read
    ├── TeacherError             a teacher that is missing, of an unknown family, or gives non-finite values
    ├── CacheError               a logit cache that is missing, broken or made by another rule
    ├── RunError                 a run folder that is in the way, or a run that cannot go on
    ├── NotThereYet              part of the design, not of this version
    └── Interrupted              Ctrl-C or SIGTERM: what is on disk resumes with the same command

Invariants of the code are asserts; a user never sees one unless there is a bug.
"""


class PipelineError(Exception):
    """The base of every error that is the user's to mend."""


class ManifestError(PipelineError):
    """A manifest or an override that does not fit the schema."""


class DocumentError(PipelineError):
    """A document source that is missing, truncated or undecodable."""


class TeacherError(PipelineError):
    """A teacher that cannot be found or used."""


class CacheError(PipelineError):
    """A logit cache that is missing, broken, or made by another rule than the manifest's."""


class RunError(PipelineError):
    """A student run that cannot start or go on."""


class NotThereYet(PipelineError):
    """A part of the design that this version does not have."""


class Interrupted(PipelineError):
    """Stopped by a signal; the same command resumes."""
