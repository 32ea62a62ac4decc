"""Use of warm processes as ranks: some scripts need a fresh interpreter.

Rules:

1. A warm process has already imported the modules that the ranks import. A script that changes a value which a library
   reads at its import comes too late. Its set-up then fails where that of a cold process would not.
2. A warm process that ends by itself in its set-up is followed by a cold one, which costs no restart of its own. From
   then on all processes of the job start cold, because others would fail the same way.
3. A cold process that fails with the same cause shows that warmth is not to blame. Warm processes are then used again,
   and their failures are treated as those of any process.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.core.recovery.causes import UNKNOWN, Cause


class Warmth(Enum):
    """Use of warm processes in this job."""

    USED = "used"
    AVOIDED = "avoided"  # one has failed in its set-up
    CLEARED = "cleared"  # a cold one has failed the same way


class SetUpFailure(Enum):
    """Kind of process whose set-up has failed by itself."""

    WARM = "a warm process"
    COLD_ALIKE = "a cold process, of what a warm one had failed of"
    COLD = "a cold process"


@dataclass(frozen=True, slots=True)
class WarmStarts:
    """Use of warm processes in one job. `cause`: why the first warm process failed."""

    warmth: Warmth = Warmth.USED
    cause: Cause = UNKNOWN


TABLE: Final[dict[tuple[Warmth, SetUpFailure], Warmth]] = {
    (Warmth.USED, SetUpFailure.WARM): Warmth.AVOIDED,
    (Warmth.USED, SetUpFailure.COLD_ALIKE): Warmth.USED,  # a new manager takes over no cause
    (Warmth.USED, SetUpFailure.COLD): Warmth.USED,
    (Warmth.AVOIDED, SetUpFailure.WARM): Warmth.AVOIDED,  # it was started before they were avoided
    (Warmth.AVOIDED, SetUpFailure.COLD_ALIKE): Warmth.CLEARED,
    (Warmth.AVOIDED, SetUpFailure.COLD): Warmth.AVOIDED,
    (Warmth.CLEARED, SetUpFailure.WARM): Warmth.CLEARED,
    (Warmth.CLEARED, SetUpFailure.COLD_ALIKE): Warmth.CLEARED,
    (Warmth.CLEARED, SetUpFailure.COLD): Warmth.CLEARED,
}
"""Use of warm processes after the failure of a set-up."""
