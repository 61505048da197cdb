"""The bytes of the log."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.v1.events_pb2 import ExecutionVertexReset, JobEvent, JobEventRecord
from jobmanager.event_store.record_encoder import RecordEncoder
from jobmanager.event_store.records import (
    FRAME_MARKER,
    Defect,
    FrameDecoder,
    HeaderDefect,
    NewerFormat,
    SegmentHeader,
    SegmentId,
    decode_header,
    encode_frame,
    encode_header,
)

HEADER = SegmentHeader(SegmentId(7, 3), "job-1", 41, 40, 39, is_snapshot=True)
PAYLOADS = [b"first", FRAME_MARKER + b" inside", b"\0" * 40, b"x" * 3000]


def decoded(data: bytes, chunk_bytes: int) -> tuple[list[bytes], Defect | None, int | None]:
    decoder = FrameDecoder(0)
    payloads: list[bytes] = []
    for start in range(0, len(data), chunk_bytes):
        chunk = data[start : start + chunk_bytes]
        payloads += [frame.payload for frame in decoder.feed(chunk)]
    decoder.finish()
    return payloads, decoder.defect, decoder.sound_after


def test_a_segment_name_sorts_by_epoch_then_index() -> None:
    assert SegmentId(3, 12).file_name == "0000000000000003-000012.log"
    assert SegmentId.of_file_name("0000000000000003-000012.log") == SegmentId(3, 12)
    assert SegmentId.of_file_name("0000000000000003-000012.log.damaged") is None
    assert SegmentId(3, 12) < SegmentId(4, 0)


def test_a_header_comes_back_as_it_was_written() -> None:
    data = encode_header(HEADER)
    assert decode_header(data + b"records") == (HEADER, len(data))


def test_a_header_with_any_byte_changed_or_missing_is_refused() -> None:
    data = encode_header(HEADER)
    for at in range(len(data)):
        with pytest.raises(HeaderDefect):
            decode_header(data[:at])
        with pytest.raises(HeaderDefect):
            decode_header(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])


def test_a_newer_format_is_told_from_damage() -> None:
    """P07."""
    newer = bytes.fromhex("484f4c444f5645520200040000000000")
    import google_crc32c

    sound = newer[:12] + google_crc32c.value(newer[:12]).to_bytes(4, "little") + b"body"
    with pytest.raises(NewerFormat, match="version 2"):
        decode_header(sound)
    with pytest.raises(HeaderDefect):
        decode_header(newer)


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=50), max_size=20), chunk=st.integers(1, 200)
)
def test_frames_come_back_whatever_the_chunks(payloads: list[bytes], chunk: int) -> None:
    data = b"".join(encode_frame(payload) for payload in payloads)
    assert decoded(data, chunk) == (payloads, None, None)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100_000])
def test_every_cut_keeps_the_frames_before_it(chunk_bytes: int) -> None:
    """P01."""
    data = b"".join(encode_frame(payload) for payload in PAYLOADS)
    ends = [len(b"".join(map(encode_frame, PAYLOADS[:count]))) for count in range(5)]
    for cut in range(0, len(data), 1 if chunk_bytes > 7 else 37):
        payloads, defect, sound_after = decoded(data[:cut], chunk_bytes)
        whole = max(count for count in range(5) if ends[count] <= cut)
        assert payloads == PAYLOADS[:whole]
        assert sound_after is None
        assert (defect is None) == (cut == ends[whole])
        assert defect is None or defect.offset == ends[whole]


def test_a_changed_byte_is_found_and_so_is_the_sound_record_behind_it() -> None:
    """P03."""
    data = b"".join(encode_frame(payload) for payload in PAYLOADS)
    first_end = len(encode_frame(PAYLOADS[0]))
    second_end = first_end + len(encode_frame(PAYLOADS[1]))
    for at in range(first_end, second_end):
        damaged = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
        payloads, defect, sound_after = decoded(damaged, 512)
        assert payloads == PAYLOADS[:1]
        assert defect is not None
        assert (defect.offset, sound_after) == (first_end, second_end)


def test_a_damaged_length_makes_the_reader_allocate_nothing() -> None:
    """P03."""
    frame = encode_frame(b"payload")
    damaged = frame[:4] + (2**31 - 1).to_bytes(4, "little") + frame[8:]
    tracemalloc.start()
    payloads, defect, sound_after = decoded(damaged + frame, 16)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert payloads == []
    assert defect == Defect(0, "the length of the record is impossible")
    assert sound_after == len(damaged)
    assert peak_bytes < 1024 * 1024


def test_an_empty_or_oversized_record_is_not_written() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        encode_frame(b"")
    with pytest.raises(ValueError, match="16777217 bytes"):
        encode_frame(bytes(16 * 1024 * 1024 + 1))


@pytest.mark.parametrize("length", [0, 1, 100, 110, 115, 120, 127, 128, 16_370, 16_390, 3_000_000])
def test_a_record_is_encoded_as_protobuf_encodes_it(length: int) -> None:
    event = JobEvent(vertex_reset=ExecutionVertexReset(vertex_id="v" * length, subtasks=[1]))
    encoder = RecordEncoder(7)
    for sequence in (1, 127, 128, 2**40):
        record = JobEventRecord(sequence=sequence, leader_epoch=7, wall_ms=5, event=event)
        assert encoder.encode(sequence, 5, event) == record.SerializeToString(deterministic=True)


def test_an_event_without_content_is_encoded_too() -> None:
    record = JobEventRecord(sequence=1, leader_epoch=7, wall_ms=5, event=JobEvent())
    assert RecordEncoder(7).encode(1, 5, JobEvent()) == record.SerializeToString()
