"""The codec accepts its own output and refuses all else with `BadFrameError`."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.errors import FrameError
from taskd.wire import codec, messages
from taskd.wire.codec import BadFrameError, FrameFault
from taskd.wire.kinds import JobRank, NodeRank, WorldRank
from taskd.wire.standbys import Become, Fork
from taskd.wire.state import Transfer

RANK = messages.RankStatus(
    rank=JobRank(3), incarnation=1, generation=2, stage=messages.Stage.PAUSED, step=41, cause="signal 9"
)
STATUS = messages.NodeStatus(
    job_id="job",
    node_rank=NodeRank(0),
    agent_id="a1",
    sequence=7,
    node_count=1,
    ranks=(RANK,),
    store_host="127.0.0.1",
    store_port=29500,
    standbys=1,
    max_restarts=3,
    generation=2,
)
PLAN = messages.WorldPlan(
    generation=3,
    world_size=4,
    store_host="::1",
    store_port=1,
    target_step=41,
    adopt=(),
    transfers=(Transfer(donor=WorldRank(0), receivers=(WorldRank(3),)),),
    timeout_s=30.0,
)
DIRECTIVE = messages.Directive(job_id="job", sequence=1, generation=3, order=messages.Order.JOIN, plan=PLAN)
BECOME = Become(env={b"A": b"\xff"}, argv=(b"s.py", b"--x"), cwd=b"/")

EXAMPLES = [
    (codec.decode_from_agent, STATUS),
    (codec.decode_from_manager, DIRECTIVE),
    (codec.decode_from_manager, messages.Refusal(reason="another job")),
    (codec.decode_from_local, messages.Hello(role="worker", pid=1)),
    (
        codec.decode_from_local,
        messages.WorkerReport(
            generation=1, stage=messages.Stage.TRAINING, step=1, condition=messages.Condition.CLEAN, at_s=0.5
        ),
    ),
    (codec.decode_from_local, messages.Modules(names=("numpy",))),
    (codec.decode_to_local, messages.Modules(names=("numpy",))),
    (codec.decode_to_local, messages.Pause(generation=3)),
    (codec.decode_to_local, messages.Join(plan=PLAN)),
    (codec.decode_to_local, messages.Release(generation=3)),
    (codec.decode_to_local, BECOME),
    (codec.decode_to_local, Fork(count=2)),
]
DECODERS = [codec.decode_from_agent, codec.decode_from_manager, codec.decode_from_local, codec.decode_to_local]


@pytest.mark.parametrize(("decode", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_each_message_survives_the_way(decode, message):
    assert decode(codec.encode(message)) == message


@pytest.mark.parametrize(("decode", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_every_truncation_is_refused(decode, message):
    frame = codec.encode(message)
    for length in range(len(frame)):
        with pytest.raises(FrameError):
            decode(frame[:length])
    with pytest.raises(FrameError):
        decode(frame + b"\xc0")


def test_another_version_names_both():
    frame = codec.MAGIC + bytes([9]) + codec.encode(STATUS)[3:]
    with pytest.raises(BadFrameError, match=r"wire version 9, this taskd speaks version 4") as info:
        codec.decode_from_agent(frame)
    assert info.value.fault is FrameFault.VERSION


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (b"", FrameFault.MAGIC),
        (b"TD", FrameFault.MAGIC),
        (b"GET / HTTP/1.1\r\n", FrameFault.MAGIC),
        (codec.encode(DIRECTIVE), FrameFault.CONTENT),  # a manager's message sent to a manager
        (b"TD\x04" + msgspec.msgpack.encode({"type": "Unknown"}), FrameFault.CONTENT),
        (b"TD\x04\x91" + b"\x91" * 100_000, FrameFault.CONTENT),
        (b"TD\x04\x81\xa1x" + b"\x91" * 100_000 + b"\xc0", FrameFault.CONTENT),  # too deep, inside an unknown field
        (b"TD\x04\x81\xa4type\xa1\xff", FrameFault.CONTENT),  # not UTF-8
        (b"TD\x04\xdd\xff\xff\xff\xff", FrameFault.CONTENT),  # claims four billion items
        (b"TD" + b"\x04" * codec.MAX_FRAME_BYTES, FrameFault.SIZE),
    ],
    ids=[
        "empty",
        "magic only",
        "http",
        "wrong direction",
        "unknown kind",
        "deep",
        "deep unknown",
        "utf8",
        "huge",
        "size",
    ],
)
def test_bad_frames_are_told_apart(frame, fault):
    with pytest.raises(BadFrameError) as info:
        codec.decode_from_agent(frame)
    assert info.value.fault is fault


def test_unknown_fields_are_ignored_and_missing_ones_are_not():
    fields = msgspec.msgpack.decode(codec.encode(STATUS)[3:])
    newer = fields | {"colour": "blue"}
    assert codec.decode_from_agent(b"TD\x04" + msgspec.msgpack.encode(newer)) == STATUS
    del fields["sequence"]
    with pytest.raises(FrameError, match="sequence"):
        codec.decode_from_agent(b"TD\x04" + msgspec.msgpack.encode(fields))


def test_a_local_frame_has_its_own_bound():
    large = messages.Modules(names=("x" * 200,) * (codec.MAX_LOCAL_BYTES // 200))
    with pytest.raises(BadFrameError) as info:
        codec.encode(large)
    assert info.value.fault is FrameFault.SIZE
    with pytest.raises(FrameError):
        codec.decode_from_local(b"TD\x04" + msgspec.msgpack.encode(large))


def test_an_environment_may_be_as_large_as_the_kernel_allows():
    variables = {b"V%d" % number: b"x" * 131_000 for number in range(48)}  # 6 MiB
    large = Become(env=variables, argv=(), cwd=b"/")
    assert codec.decode_to_local(codec.encode(large)) == large
    with pytest.raises(BadFrameError, match="expected at most"):
        codec.encode(Become(env={b"V": b"x", **{b"W%d" % n: b"x" * 131_000 for n in range(70)}}, argv=(), cwd=b"/"))


def test_a_hostile_text_is_shortened_and_escaped():
    frame = b"TD\x04" + msgspec.msgpack.encode({"type": "\x1b[31m" + "x" * 100_000})
    with pytest.raises(FrameError) as info:
        codec.decode_from_agent(frame)
    assert len(str(info.value)) < 500
    assert "\x1b" not in str(info.value)


@given(st.binary(max_size=400), st.booleans(), st.sampled_from(DECODERS))
def test_arbitrary_bytes_raise_nothing_else(data, with_header, decode):
    frame = b"TD\x04" + data if with_header else data
    try:
        decode(frame)
    except FrameError:
        return


@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_frames_raise_nothing_else(example, data):
    decode, message = example
    frame = bytearray(codec.encode(message))
    for _ in range(data.draw(st.integers(1, 8))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(frame))
    except FrameError:
        return
