"""Trial, with the step that is done twice, whether a script fetches a batch ahead of its steps.

Rules:

1. At a commit, such a script holds a batch that no step has used. If the repeated step goes on behind that batch, it
   comes out differently. If the loader hands the batch out again, it comes out the same. So both are tried.
2. If the text of the script shows that a batch is fetched ahead, only the second is tried.
3. The script must have asked this loader alone, in each of the first steps. An equal result proves nothing of another
   loader, whose batches may matter later.
"""

from collections.abc import Mapping

from torch.utils.data import DataLoader

from taskd.adaptors.training.data.fetched_ahead import MOST_AHEAD
from taskd.adaptors.training.data.places import LoaderPlace
from taskd.adaptors.training.parts.parts import Parts


def can_be_tried(parts: Parts) -> bool:
    """Return whether the state has one data loader, whose place is known batch by batch."""
    loaders = [name for name, part in parts.positions.items() if isinstance(part, DataLoader)]
    return len(loaders) == 1 and isinstance(parts.places.get(loaders[0]), LoaderPlace)


class AheadTrial:
    """Trial with the loaders of one training state.

    Args:
        parts: parts of the state.
        suspected: whether the text of the script shows a batch that is fetched ahead.
    """

    def __init__(self, parts: Parts, *, suspected: bool) -> None:
        self._places = parts.loader_places
        self._least = MOST_AHEAD if suspected else 0
        self._tried: dict[str, LoaderPlace] = {}
        self.batches = 0
        """Batches that are handed out again in the present try."""
        self.tries = 0
        """Tries before the present one."""
        for place in self._places.values():
            place.ahead.follow()

    def committed(self) -> None:
        """Remember the places at the commit before the step that is done twice."""
        for place in self._places.values():
            place.ahead.remember()

    def leave(self) -> int:
        """Choose the loader to try, as the step may be left. Return how many of its batches are handed out again."""
        used = {name: one for name, one in self._places.items() if one.ahead.is_used}
        self._tried = {name: one for name, one in used.items() if len(used) == 1 and one.ahead.remembered is not None}
        self.batches = self._least if self._tried else 0
        return self.batches

    @property
    def why_no_more(self) -> str:
        """Reason why nothing else can be tried; "" if something can."""
        return "" if self._tried and self.batches < MOST_AHEAD else "no batch is fetched ahead"

    def try_more(self) -> None:
        """Have one batch more handed out again: the step has come out differently."""
        self.batches, self.tries = self.batches + 1, self.tries + 1

    def put_back(self) -> bool:
        """Have the batches of the present try handed out again. Return whether any are."""
        again = [place.fetch_again() for place in self._tried.values()] if self.batches else []
        return any(again)

    def end(self, *, exact: bool) -> dict[str, int]:
        """Stop following. If the step came out the same, return how many batches of which loader are fetched ahead."""
        found = dict.fromkeys(self._tried, self.batches) if exact and self.batches else {}
        settle(self._places, found)
        return found


def settle(places: Mapping[str, LoaderPlace], found: Mapping[str, int]) -> None:
    """Have the found numbers of batches handed out again after a recovery, and none of other loaders."""
    for name, place in places.items():
        place.ahead.settle(min(MOST_AHEAD, max(0, found.get(name, 0))))
