"""The bytes of the event log: segment names, segment headers and record frames (docs/event-log.md).

Pure: bytes in, records out. A segment is a header and then frames. The decoder takes the bytes in
chunks of any size and holds one frame at most, so memory does not depend on the log's length.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c

MAGIC: Final = b"HOLDOVER"
FORMAT_VERSION: Final = 1
# Starts every frame, so that a reader finds the next one behind damaged bytes.
FRAME_MARKER: Final = b"\xabJEV"
RECORD_BYTES_MAX: Final = 16 * 1024 * 1024

# Magic, format version, body length; then the CRC of these. The same in every format version.
_PREAMBLE = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
# Leader epoch, segment index, first, replayed and durable sequence, flags; the job id follows.
_BODY = struct.Struct("<qIqqqB")
_FLAG_SNAPSHOT = 1
_FRAME_LENGTH = struct.Struct("<I")
# Marker, length of the payload, CRC of length and payload.
_FRAME_HEAD = struct.Struct("<4sII")
FRAME_OVERHEAD_BYTES: Final = _FRAME_HEAD.size
# What a reader needs to see to decode any header of this version.
HEADER_BYTES_MAX: Final = _PREAMBLE.size + _CRC.size + _BODY.size + 64 + _CRC.size

_SEGMENT_NAME = re.compile(r"(\d{16})-(\d{6,})\.log")


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """A segment's place in the log: by leader epoch, then by index within the epoch, from 0."""

    leader_epoch: int
    index: int

    @property
    def file_name(self) -> str:
        """The segment's file name."""
        return f"{self.leader_epoch:016d}-{self.index:06d}.log"

    @classmethod
    def of_file_name(cls, name: str) -> SegmentId | None:
        """The segment that the file holds, or None when the file is no segment."""
        match = _SEGMENT_NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What stands at the beginning of a segment.

    Attributes:
        segment_id: repeats the file name.
        job_id: the job.
        first_sequence: sequence of the first record.
        replayed_sequence: last sequence that this leader had replayed when it began; what an
            older leader appended after it is foreign and ignored. 0 when it replayed nothing.
        durable_sequence: records up to this one were durable in the segments before when this one
            was begun. If they are gone while the snapshot here is incomplete, that is damage.
        is_snapshot: the records begin with a snapshot, which supersedes all segments before.
    """

    segment_id: SegmentId
    job_id: str
    first_sequence: int
    replayed_sequence: int
    durable_sequence: int
    is_snapshot: bool


class HeaderDefect(ValueError):
    """The bytes are no segment header; the text says why."""


class NewerFormat(ValueError):
    """The segment's format version is newer than this code."""

    def __init__(self, version: int) -> None:
        super().__init__(f"format version {version}")
        self.version = version


def encode_header(header: SegmentHeader) -> bytes:
    """The header's bytes."""
    body = _BODY.pack(
        header.segment_id.leader_epoch,
        header.segment_id.index,
        header.first_sequence,
        header.replayed_sequence,
        header.durable_sequence,
        _FLAG_SNAPSHOT if header.is_snapshot else 0,
    ) + header.job_id.encode("ascii")
    preamble = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(body))
    return preamble + _crc(preamble) + body + _crc(body)


def decode_header(data: bytes) -> tuple[SegmentHeader, int]:
    """The header at the beginning of a segment, and its size in bytes.

    `data` holds `HEADER_BYTES_MAX` bytes, or the whole file when that is shorter. Raises
    `HeaderDefect` when it is cut off or damaged, `NewerFormat` when it is sound but unknown.
    """
    body_offset = _PREAMBLE.size + _CRC.size
    if len(data) < body_offset:
        raise HeaderDefect("the segment header is cut off")
    magic, version, body_bytes = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise HeaderDefect("the segment does not begin with HOLDOVER")
    if _crc(data[: _PREAMBLE.size]) != data[_PREAMBLE.size : body_offset]:
        raise HeaderDefect("the CRC of the segment header is wrong")
    if version > FORMAT_VERSION:
        raise NewerFormat(version)
    end = body_offset + body_bytes
    if version < 1 or not _BODY.size <= body_bytes <= HEADER_BYTES_MAX:
        raise HeaderDefect("the segment header has impossible values")
    if len(data) < end + _CRC.size:
        raise HeaderDefect("the segment header is cut off")
    body = data[body_offset:end]
    if _crc(body) != data[end : end + _CRC.size]:
        raise HeaderDefect("the CRC of the segment header is wrong")
    epoch, index, first_sequence, replayed_sequence, durable_sequence, flags = _BODY.unpack_from(
        body
    )
    header = SegmentHeader(
        SegmentId(epoch, index),
        body[_BODY.size :].decode("ascii", "replace"),
        first_sequence,
        replayed_sequence,
        durable_sequence,
        bool(flags & _FLAG_SNAPSHOT),
    )
    return header, end + _CRC.size


def encode_frame(payload: bytes) -> bytes:
    """The frame of one record; `payload` has 1 to `RECORD_BYTES_MAX` bytes."""
    length = len(payload)
    if not 1 <= length <= RECORD_BYTES_MAX:
        raise ValueError(f"a record of {length} bytes; 1 to {RECORD_BYTES_MAX} are possible")
    # Written out, and not by way of `_frame_crc`: this is done for every event of every job.
    crc = google_crc32c.value(_FRAME_LENGTH.pack(length) + payload)
    return _FRAME_HEAD.pack(FRAME_MARKER, length, crc) + payload


class Frame(NamedTuple):
    """One record's payload and where its frame begins in the file, in bytes."""

    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Defect:
    """Where the sound part of a segment ends before its bytes do, and why."""

    offset: int
    reason: str


class FrameDecoder:
    """Splits the bytes after a segment's header into frames.

    Feed it all bytes, then call `finish`. It stops at the first byte that is no sound frame: then
    `defect` says where and why, and the rest is only searched: `sound_after` is the offset of the
    first sound frame behind the defect, if any. With such a frame the defect is damage; without
    one it may be the torn tail that a crash leaves.
    """

    def __init__(self, offset: int, defect: Defect | None = None) -> None:
        """Decode from the file's `offset`; with a `defect` (in the header) only search."""
        self.defect = defect
        self.sound_after: int | None = None
        self._buffer = bytearray()
        self._offset = offset
        self._position = 0

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that `chunk` completes."""
        self._buffer += chunk
        while self.defect is None:
            frame = self._next_frame()
            if frame is None:
                break
            yield frame
        if self.defect is not None:
            self._search(at_end=False)
        del self._buffer[: self._position]
        self._offset += self._position
        self._position = 0

    def finish(self) -> None:
        """The file ends here."""
        if self.defect is None and self._buffer:
            self.defect = Defect(self._offset, "the last record is cut off")
            self._position = 1
        if self.defect is not None:
            self._search(at_end=True)

    def _next_frame(self) -> Frame | None:
        """The frame at the position; None when it is not complete yet or defective."""
        buffer, start = self._buffer, self._position
        payload_offset = start + FRAME_OVERHEAD_BYTES
        if len(buffer) < payload_offset:
            marker = buffer[start : start + len(FRAME_MARKER)]
            if marker != FRAME_MARKER[: len(marker)]:
                self._found_defect("no record begins here")
            return None
        marker, length, _ = _FRAME_HEAD.unpack_from(buffer, start)
        end = payload_offset + length
        if marker != FRAME_MARKER:
            self._found_defect("no record begins here")
        elif not 1 <= length <= RECORD_BYTES_MAX:
            self._found_defect("the length of the record is impossible")
        elif end <= len(buffer):
            payload = self._sound_payload_at(start, length)
            if payload is not None:
                self._position = end
                return Frame(self._offset + start, payload)
            self._found_defect("the CRC of the record is wrong")
        return None

    def _found_defect(self, reason: str) -> None:
        self.defect = Defect(self._offset + self._position, reason)
        self._position += 1

    def _search(self, at_end: bool) -> None:
        """Look for a sound frame from the position on, as far as the bytes at hand decide."""
        while self.sound_after is None:
            start = self._buffer.find(FRAME_MARKER, self._position)
            if start < 0:
                kept = len(FRAME_MARKER) - 1  # the marker may go on in the next chunk
                self._position = max(self._position, len(self._buffer) - kept)
                return
            self._position = start
            payload_offset = start + FRAME_OVERHEAD_BYTES
            if payload_offset > len(self._buffer):
                if not at_end:
                    return
            else:
                _, length, _ = _FRAME_HEAD.unpack_from(self._buffer, start)
                end = payload_offset + length
                if 1 <= length <= RECORD_BYTES_MAX:
                    if end > len(self._buffer):
                        if not at_end:
                            return
                    elif self._sound_payload_at(start, length) is not None:
                        self.sound_after = self._offset + start
            self._position += 1
        self._position = len(self._buffer)

    def _sound_payload_at(self, start: int, length: int) -> bytes | None:
        offset = start + FRAME_OVERHEAD_BYTES
        payload = bytes(self._buffer[offset : offset + length])
        (crc,) = _CRC.unpack_from(self._buffer, offset - _CRC.size)
        return payload if crc == _frame_crc(length, payload) else None


def _crc(data: bytes) -> bytes:
    return _CRC.pack(google_crc32c.value(data))


def _frame_crc(length: int, payload: bytes) -> int:
    crc: int = google_crc32c.value(_FRAME_LENGTH.pack(length) + payload)
    return crc
