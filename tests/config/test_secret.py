"""The job's secret: its possible sources, and the refusal of an unusable one."""

import os

import pytest

from taskd.config.reading import Source
from taskd.config.secret import most_bits, read_secret
from taskd.errors import ConfigError

SECRET = "0123456789abcdef-ü-ghijklmn"


def env(path=None, secret=None):
    return Source({"TASKD_SECRET": secret or "", "TASKD_SECRET_FILE": str(path or "")})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def test_no_secret_is_none():
    assert read_secret(env()) is None


def test_from_a_variable_a_key_or_a_file(file):
    expected = SECRET.encode()
    assert read_secret(env(secret=SECRET)) == expected
    assert read_secret(env(file)) == expected
    assert read_secret(Source({}, {"secret": SECRET})) == expected
    assert read_secret(Source({}, {"secret_file": str(file)})) == expected


def test_all_places_together_must_agree(file):
    assert read_secret(Source({"TASKD_SECRET": SECRET}, {"secret": SECRET, "secret_file": file})) == SECRET.encode()
    with pytest.raises(ConfigError, match=r"TASKD_SECRET and TASKD_SECRET_FILE .* give different secrets") as info:
        read_secret(env(file, secret="another secret entirely"))
    assert "another" not in str(info.value)
    with pytest.raises(ConfigError, match="'secret' of init_taskd_manager and TASKD_SECRET give different secrets"):
        read_secret(Source({"TASKD_SECRET": SECRET}, {"secret": "another secret entirely"}))


def test_too_short_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match=r"TASKD_SECRET: found a secret of 7 bytes that .* openssl rand") as info:
        read_secret(env(secret="hunter2"))
    assert "hunter2" not in str(info.value)


@pytest.mark.parametrize(
    ("secret", "bits"),
    [
        ("0123456789abcdef", 64),
        ("0123456789ABCDEF" * 2, 128),
        ("0123456789abcdef" * 4, 256),
        ("0123456789" * 4, 132),
        ("abcdefghijklmnopqrstuvwxy", 125),
        ("Zm9vYmFyYmF6cXV4MTIzNA", 132),
        ("a" * 1000, 1),
        ("0101" * 100, 2),
    ],
)
def test_what_holds_fewer_than_128_random_bits_is_refused(secret, bits):
    assert most_bits(secret.encode()) == bits
    if bits < 128:
        with pytest.raises(ConfigError, match=f"holds {bits} random bits at most, expected 128 or more; make one with"):
            read_secret(env(secret=secret))
    else:
        assert read_secret(env(secret=secret)) == secret.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_reach_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}, .* chmod 600 .*defaultMode: 0400"):
        read_secret(env(file))


def test_a_mounted_link_to_a_private_file_is_taken(file, tmp_path):
    file.chmod(0o400)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_secret(env(link)) == SECRET.encode()


def test_what_is_no_readable_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, words in (("missing", "No such file"), (".", "no regular file"), ("fifo", "no regular file")):
        with pytest.raises(ConfigError, match=words):
            read_secret(env(tmp_path / name))


@pytest.mark.parametrize("content", ["", "\n", "x" * 5000])
def test_an_empty_or_huge_file_is_refused(file, content):
    file.write_text(content)
    with pytest.raises(ConfigError, match="empty or larger than 4096 bytes"):
        read_secret(env(file))
