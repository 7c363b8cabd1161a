"""The errors a user can meet: each says what is wrong, the value got, where it comes from, what to do."""


class FedSynthError(Exception):
    """Anything the user can mend; printed as one message, without a traceback."""


class ConfigError(FedSynthError):
    """A config key is unknown, has the wrong type, or an impossible value.

    Attributes:
        key: The full config key at fault, where one is known.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class DataError(FedSynthError):
    """A data file is missing, damaged, or does not hold what its format promises."""


class PrivacyError(FedSynthError):
    """An operation would break the privacy guarantee."""


class PrivateInputError(PrivacyError):
    """A server-side stage asked for an artifact that depends on private records."""


class BudgetError(PrivacyError):
    """A release would spend more than the budget allows."""


class ArtifactError(FedSynthError):
    """A stored artifact is missing, damaged, or belongs to another configuration."""
