"""Ray: learners that are plain actors, and Ray Train."""

from tests.trainers.scenes import TrainerKill, TrainerScene

_QUIET = (("RAY_AUTH_MODE", "disabled"), ("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_TRAIN_V2_ENABLED", "1"))
_LIMIT_S = 500.0
"""Limit of a run, in seconds. Ray starts some ten processes, and a new one for each that is killed."""

SCENES: tuple[TrainerScene, ...] = (
    TrainerScene(
        "ray-actors",
        "ray_actors",
        (TrainerKill(1, 3, "backward", 2), TrainerKill(0, 6, "micro-batch")),
        environment=_QUIET,
        launch="python",
        limit_s=_LIMIT_S,
    ),
    TrainerScene(
        "ray-actors-afterwards",
        "ray_actors",
        (TrainerKill(0, 4, "checkpoint"), TrainerKill(1, 8, "evaluation")),
        environment=_QUIET,
        launch="python",
        limit_s=_LIMIT_S,
    ),
    TrainerScene(
        "ray-train",
        "ray_train",
        (TrainerKill(1, 3, "backward"), TrainerKill(0, 8, "evaluation")),
        environment=_QUIET,
        launch="python",
        limit_s=_LIMIT_S,
    ),
)
