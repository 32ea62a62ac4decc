"""The adapter fits the installed Ray."""

import pytest

from taskd.adaptors.trainers.library import misfit

pytest.importorskip("ray.train")


def test_the_installed_ray_fits() -> None:
    from taskd.adaptors.trainers.ray.seams import RAY_TRAIN

    assert not misfit("ray", RAY_TRAIN)
