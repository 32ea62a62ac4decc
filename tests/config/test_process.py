"""Variables that are put into the environment of this process's children."""

from pathlib import Path

import pytest

from taskd.config.process import environment, forget_preload, profile_nccl, profile_nccl_no_more

PLUGIN = "NCCL_PROFILER_PLUGIN"


def test_nccl_loads_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGIN, "")
    monkeypatch.delenv(PLUGIN)
    assert [profile_nccl(Path("/a/plugin.so")) for _ in range(2)] == ["", ""]
    assert environment()[PLUGIN] == "/a/plugin.so"
    profile_nccl_no_more()
    assert PLUGIN not in environment()


def test_the_users_own_profiler_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGIN, "none")
    assert "is set to none" in profile_nccl(Path("/a/plugin.so"))
    profile_nccl_no_more()
    assert environment()[PLUGIN] == "none"


@pytest.mark.parametrize(("length", "taken"), [(254, True), (255, False)])
def test_a_path_that_nccl_cuts_is_not_given_to_it(monkeypatch: pytest.MonkeyPatch, length: int, *, taken: bool) -> None:
    monkeypatch.setenv(PLUGIN, "")
    monkeypatch.delenv(PLUGIN)
    reason = profile_nccl(Path("/" + "d" * (length - 1)))
    assert (PLUGIN in environment()) is taken
    assert ("install taskd in a shorter one" in reason) is not taken


@pytest.mark.parametrize(
    ("found", "keep", "left"),
    [
        ("/a/libtaskd.so", "", None),
        ("/b/libc.so /a/libtaskd.so:/d/mylibtaskd.so", "off", "/b/libc.so:/d/mylibtaskd.so"),
        ("/a/libtaskd.so", "on", "/a/libtaskd.so"),
    ],
)
def test_children_of_a_warm_rank_do_not_see_the_gate(
    monkeypatch: pytest.MonkeyPatch, found: str, keep: str, left: str | None
) -> None:
    monkeypatch.setenv("LD_PRELOAD", found)
    monkeypatch.setenv("TASKD_PRELOAD_KEEP", keep)
    forget_preload()
    assert environment().get("LD_PRELOAD") == left
