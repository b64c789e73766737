"""Whether the disk is quick enough for the event loop to write the log itself (docs/adr/0021)."""

from __future__ import annotations

QUICK_S = 0.0005  # a write and its sync may take that long, on average
WEIGHT = 1 / 16  # of the latest write in the average: one that is slow now and then is forgiven
REST_S = 0.05  # the thread writes that long; then the loop tries again
REST_MAX_S = 5.0


class Pace:
    """Watches how long the loop's own writes take, and gives them to the thread for a while.

    A slow disk and large batches are alike: the loop has better things to do meanwhile. The rests
    grow while writes stay slow, so that trying costs next to nothing. Times are monotonic, in
    seconds.
    """

    def __init__(self) -> None:
        self._average_s = 0.0  # what a write took
        self._rest_s = REST_S
        self._rest_until = 0.0

    def is_quick(self, now: float) -> bool:
        return now >= self._rest_until

    def note(self, began: float, ended: float) -> None:
        """The loop wrote and synced a batch."""
        self._average_s += WEIGHT * (ended - began - self._average_s)
        if self._average_s > QUICK_S:
            was_quick_s = ended - self._rest_until
            self._rest_s = REST_S if was_quick_s > REST_MAX_S else min(2 * self._rest_s, REST_MAX_S)
            self._rest_until = ended + self._rest_s
            self._average_s = 0.0
