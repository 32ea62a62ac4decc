"""The shim's expectations of the gloo inside torch: the symbols of the functions that its hooks precede.

csrc/binding.h has the same names. A function that is not exported under its name is called without its hook.
"""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Seam

_LIBRARY: Final = "libtorch_cpu.so"
_TCP: Final = "_ZN4gloo9transport3tcp"
_MILLISECONDS: Final = "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"


def _seams(*symbols: str) -> tuple[Seam, ...]:
    return tuple(Seam(_LIBRARY, symbol, Fit.EXPORTS) for symbol in symbols)


FREEING: Final = _seams(
    f"{_TCP}6Device18registerDescriptorEiiPNS1_7HandlerE",
    f"{_TCP}6Device20unregisterDescriptorEiPNS1_7HandlerE",
    f"{_TCP}13UnboundBuffer8waitSendEPi{_MILLISECONDS}",
    f"{_TCP}13UnboundBuffer8waitRecvEPi{_MILLISECONDS}",
    f"{_TCP}13UnboundBuffer13abortWaitSendEv",
    f"{_TCP}13UnboundBuffer13abortWaitRecvEv",
)
"""Functions by which a rank is freed from a collective that nobody ends."""

SEEING: Final = _seams(
    f"{_TCP}13UnboundBuffer4sendEimmm",
    f"{_TCP}13UnboundBuffer4recvEimmm",
    f"{_TCP}7ContextC1ESt10shared_ptrINS1_6DeviceEEii",
    f"{_TCP}13UnboundBufferC1ERKSt10shared_ptrINS1_7ContextEEPvm",
    "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE",
    "_ZN4gloo9allgatherERNS_16AllgatherOptionsE",
    "_ZN4gloo10allgathervERNS_17AllgathervOptionsE",
    "_ZN4gloo9broadcastERNS_16BroadcastOptionsE",
    "_ZN4gloo6reduceERNS_13ReduceOptionsE",
    "_ZN4gloo6gatherERNS_13GatherOptionsE",
    "_ZN4gloo7scatterERNS_14ScatterOptionsE",
    "_ZN4gloo8alltoallERNS_15AlltoallOptionsE",
    "_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE",
    "_ZN4gloo7barrierERNS_14BarrierOptionsE",
)
"""Functions by which the black box records the collective that a rank is in."""
