"""One machine without a given secret: manager and agents recognize each other, but no neighbour who listens first."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.errors import SecretError
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from tests.wire.peers import NONE, ServingManager, status, until

HERE = Address(LOOPBACK, 9601)


@pytest.mark.parametrize("other", ["no secret", "his own"])
def test_a_neighbour_who_listens_first_is_not_obeyed(other: str, tmp_path: Path) -> None:
    his = NONE if other == "no secret" else secured(NONE, HERE, tmp_path / "neighbour")
    with ServingManager(security=his) as neighbour:
        ours = secured(NONE, neighbour.address, tmp_path / "ours")
        with AgentSocket(neighbour.address, ours) as agent:
            assert not until(agent, lambda _: agent.trouble is not None)
            assert not agent.send(status())
            assert "the same user and TASKD_RUN_DIR" in (agent.trouble or "")
        assert neighbour.served == 0


def test_manager_and_agents_of_one_user_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: secured(NONE, HERE, tmp_path / "run").secret, range(64)))
    assert len(set(found)) == 1
    assert found[0] is not None
    assert len(found[0]) == 64
    (file,) = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with ServingManager(security=secured(NONE, HERE, tmp_path / "run")) as manager:
        link = AgentSocket(manager.address, secured(NONE, HERE, tmp_path / "run"))
        with link as agent:
            until(agent, lambda _: agent.connected)


def test_what_was_given_is_used_and_elsewhere_none_is_made(tmp_path: Path) -> None:
    given, insecure = Security(b"0123456789abcdef" * 2), Security(insecure=True)
    assert secured(given, HERE, tmp_path / "run") is given
    assert secured(insecure, HERE, tmp_path / "run") is insecure
    assert secured(NONE, Address("10.0.0.1", 9601), tmp_path / "run") is NONE
    assert not (tmp_path / "run").exists()


def test_a_secret_that_cannot_be_kept_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in its place")
    with pytest.raises(SecretError, match=r"no secret was given for 127\.0\.0\.1:9601, .* set TASKD_SECRET .*openssl"):
        secured(NONE, HERE, tmp_path / "run")


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (b"", r"no secret \(0 bytes\)"),
        (b"0" * 63, "a damaged secret"),
        (b"0" * 65, "a damaged secret"),
        (b"g" * 64, "a damaged secret"),
    ],
)
def test_a_file_without_a_whole_secret_is_refused(left: bytes, found: str, tmp_path: Path) -> None:
    """A full disk, a tool or a user has damaged it. Its content is then no secret."""
    secured(NONE, HERE, tmp_path / "run")
    (file,) = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
    file.write_bytes(left)
    with pytest.raises(
        SecretError, match=rf"{file}: found {found}.* expected 64 hexadecimal digits; .* remove the file"
    ):
        secured(NONE, HERE, tmp_path / "run")
    file.unlink()
    assert len(secured(NONE, HERE, tmp_path / "run").secret or b"") == 64
