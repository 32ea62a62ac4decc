"""Whether warm processes become ranks: some scripts need a fresh interpreter.

Rules:

1. A warm process has imported what the ranks import. A script that changes what a library reads when it is imported
   comes too late in it, and its set-up fails where a cold process's would not.
2. A warm process that ends by itself in its set-up is followed by a cold one, which costs no restart of its own. All
   processes of the job start cold from then on: others would fail alike.
3. A cold one that fails with the same cause shows that warmth is not to blame. Warm processes are used again then, and
   their failures are those of any process.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.core.recovery.causes import UNKNOWN, Cause


class Warmth(Enum):
    """What is known of warm processes in this job."""

    USED = "used"
    AVOIDED = "avoided"  # one has failed in its set-up
    CLEARED = "cleared"  # and a cold one alike


class SetUpFailure(Enum):
    """Whose set-up has failed by itself."""

    WARM = "a warm process"
    COLD_ALIKE = "a cold process, of what a warm one had failed of"
    COLD = "a cold process"


@dataclass(frozen=True, slots=True)
class WarmStarts:
    """The state of one job. `cause`: of the first warm process that has failed."""

    warmth: Warmth = Warmth.USED
    cause: Cause = UNKNOWN


TABLE: Final[dict[tuple[Warmth, SetUpFailure], Warmth]] = {
    (Warmth.USED, SetUpFailure.WARM): Warmth.AVOIDED,
    (Warmth.USED, SetUpFailure.COLD_ALIKE): Warmth.USED,  # what a new manager takes over has no cause
    (Warmth.USED, SetUpFailure.COLD): Warmth.USED,
    (Warmth.AVOIDED, SetUpFailure.WARM): Warmth.AVOIDED,  # it was started before
    (Warmth.AVOIDED, SetUpFailure.COLD_ALIKE): Warmth.CLEARED,
    (Warmth.AVOIDED, SetUpFailure.COLD): Warmth.AVOIDED,
    (Warmth.CLEARED, SetUpFailure.WARM): Warmth.CLEARED,
    (Warmth.CLEARED, SetUpFailure.COLD_ALIKE): Warmth.CLEARED,
    (Warmth.CLEARED, SetUpFailure.COLD): Warmth.CLEARED,
}
"""What is known of warm processes when a set-up has failed."""
