"""The closed set of things a process can be doing right now, as its ring header tells."""

from enum import IntEnum


class Activity(IntEnum):
    """What the main loop of a process is in; the numbers are in ring files and never change their meaning."""

    UNKNOWN = 0
    STARTING = 1
    LOADING_MODEL = 2
    SIZING_CACHE = 3
    WARMING_UP = 4
    WAITING = 5
    RECEIVING = 6
    SCHEDULING = 7
    EXECUTING = 8
    SAMPLING = 9
    UPDATING = 10
    SENDING = 11
    SERVING = 12
    STOPPING = 13
    PAUSED = 14
    COMPILING_GRAMMAR = 15
    RESTARTING = 16
    """An API server whose engine died, while another starts."""
    BROKEN = 17
    """An API server that lets nobody in because its model gives no numbers."""

    @property
    def label(self) -> str:
        """The word people see."""
        return self.name.lower()

    @classmethod
    def of(cls, number: int) -> "Activity":
        """The activity with this number; one that a newer writer knows and we do not is UNKNOWN."""
        return _BY_NUMBER.get(number, cls.UNKNOWN)


_BY_NUMBER = {activity.value: activity for activity in Activity}
