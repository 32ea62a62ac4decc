"""Names for each measured trainer: the library to import, and the class of its turns."""

from typing import Final

LIBRARIES: Final = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "hf": "transformers",
    "lightning": "lightning",
    "megatron": "megatron.core",
    "titan": "torchtitan",
}
TURNS: Final = {
    "accelerate": "AccelerateTurns",
    "deepspeed": "DeepspeedTurns",
    "hf": "HfTurns",
    "lightning": "LightningTurns",
    "megatron": "MegatronTurns",
    "titan": "TitanTurns",
}
