"""A stage whose own import fails: not the same fault as a stage that does not exist."""

import a_package_nobody_has  # noqa: F401
