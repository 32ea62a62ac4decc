"""Groups that only the script can make again."""

from dataclasses import replace
from datetime import timedelta

from taskd.adaptors.groups.calls import GroupCall, strangers

WORLD = GroupCall(
    size=2,
    ranks=(),
    backend="gloo",
    name="default_pg",
    options=None,
    timeout=timedelta(seconds=1),
    tag=None,
    device=None,
    desc=None,
)


def test_an_option_that_is_not_used_is_no_matter() -> None:
    assert not strangers([replace(WORLD, more={"enable_reconfigure": False})], ["default_pg"])


def test_an_option_that_is_not_known_is() -> None:
    asked = replace(WORLD, more={"enable_reconfigure": True})
    assert strangers([asked], ["default_pg"]).startswith(
        "the group default_pg was made with {'enable_reconfigure': True}"
    )


def test_a_group_that_nobody_saw_is() -> None:
    assert "['split:1'] were made by shrink_group" in strangers([WORLD], ["default_pg", "split:1"])
