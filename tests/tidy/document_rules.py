"""Tidy rules over everything that is read: the contract in proto/, documents, and any text."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from pathlib import Path, PurePosixPath

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tests.tidy.source import ROOT, Finding, Source

PROTO_LINE_MAX = 110
CHANGE_KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
# What belongs to one machine or to one way of working on the project, not to the project.
FOREIGN = {
    re.compile(
        r"(?<![\w./-])/(?:work|root|tmp/w|opt/pypi[\w-]*|opt/wheels)(?:/|\b)"
    ): "machine path",
    re.compile(r"(?<![\w./-])/home/\w+"): "machine path",
    re.compile(
        r"https?://[^/\s]*(?:artifactory|nexus|mirror|registry|pypi)", re.I
    ): "registry host",
    re.compile(r"(?:extra-)?index-url|find-links", re.I): "registry setting",
    re.compile(r"\b(?:issue|pull request|PR|closes|fixes) ?#?\d+\b", re.I): "issue number",
}
# The rules' own words and their bad examples would report themselves.
RULES_THEMSELVES = ("tests/tidy/",)

# Where SourceCodeInfo counts each kind of declaration (field numbers of descriptor.proto).
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _NESTED, _NESTED_ENUM, _VALUE, _METHOD = 2, 3, 4, 2, 2


def text_is_finished(source: Source) -> Iterator[Finding]:
    """No note to do it later: either it is done, or it is no part of the project yet."""
    if source.path.startswith(RULES_THEMSELVES):
        return
    for number, line in source.lines():
        if found := UNFINISHED.search(line):
            yield Finding(source.path, number, f"{found.group()} note")


def project_speaks_of_itself(source: Source) -> Iterator[Finding]:
    """No machine paths, registry hosts or issue numbers."""
    if source.path.startswith(RULES_THEMSELVES):
        return
    for number, line in source.lines():
        for pattern, kind in FOREIGN.items():
            if found := pattern.search(line):
                yield Finding(source.path, number, f"{kind}: {found.group()!r}")


def proto_is_plain(source: Source) -> Iterator[Finding]:
    """No map fields (their bytes are not deterministic), no line over 110 characters."""
    if not source.path.endswith(".proto"):
        return
    for number, line in source.lines():
        if re.search(r"\bmap\s*<", line.split("//")[0]):
            yield Finding(source.path, number, "map field: use repeated entries, sorted")
        if len(line) > PROTO_LINE_MAX:
            yield Finding(source.path, number, f"{len(line)} characters, over {PROTO_LINE_MAX}")


def proto_is_commented(source: Source) -> Iterator[Finding]:
    """Every service, rpc, message, field, enum and value has a comment, before or beside it."""
    if not source.path.endswith(".proto"):
        return
    file = _described(source)
    comments: dict[tuple[int, ...], tuple[int, bool]] = {
        tuple(place.path): (
            place.span[0] + 1,
            bool((place.leading_comments + place.trailing_comments).strip()),
        )
        for place in file.source_code_info.location
    }
    for path, name in _declarations(file):
        line, commented = comments[path]
        if not commented:
            yield Finding(source.path, line, f"{name} without comment")


def _declarations(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path and name of everything that needs a comment, in declaration order by kind."""
    for i, service in enumerate(file.service):
        yield (_SERVICE, i), service.name
        for j, method in enumerate(service.method):
            yield (_SERVICE, i, _METHOD, j), f"{service.name}.{method.name}"
    for i, enum in enumerate(file.enum_type):
        yield from _enum_declarations((_ENUM, i), enum)
    for i, message in enumerate(file.message_type):
        yield from _message_declarations((_MESSAGE, i), message)


def _enum_declarations(
    path: tuple[int, ...], enum: descriptor_pb2.EnumDescriptorProto
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, enum.name
    for j, value in enumerate(enum.value):
        yield (*path, _VALUE, j), f"{enum.name}.{value.name}"


def _message_declarations(
    path: tuple[int, ...], message: descriptor_pb2.DescriptorProto
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, message.name
    for j, field in enumerate(message.field):
        yield (*path, _FIELD, j), f"{message.name}.{field.name}"
    for j, enum in enumerate(message.enum_type):
        yield from _enum_declarations((*path, _NESTED_ENUM, j), enum)
    for j, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message_declarations((*path, _NESTED, j), nested)


@lru_cache(maxsize=64)
def _described(source: Source) -> descriptor_pb2.FileDescriptorProto:
    """The file as protoc describes it, with comments; its imports come from the project."""
    with tempfile.TemporaryDirectory() as directory:
        name = source.path.removeprefix("proto/")
        overlay = Path(directory) / "overlay" / name
        overlay.parent.mkdir(parents=True)
        overlay.write_text(source.text)
        output = Path(directory) / "set.binpb"
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        roots = [Path(directory) / "overlay", ROOT / "proto", well_known]
        arguments = [*(f"-I{root}" for root in roots), "--include_source_info"]
        status = protoc.main(["protoc", *arguments, f"--descriptor_set_out={output}", str(overlay)])
        assert status == 0, f"{source.path} does not compile; protoc's messages are above"
        described = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    return described.file[0]


def changelog_is_kept(source: Source) -> Iterator[Finding]:
    """CHANGELOG.md follows Keep a Changelog: Unreleased first, then dated versions, known kinds."""
    if source.path != "CHANGELOG.md":
        return
    versions: list[tuple[int, ...]] = []
    if not source.text.startswith("# Changelog\n"):
        yield Finding(source.path, 1, "does not start with '# Changelog'")
    headings = [(n, line) for n, line in source.lines() if line.startswith("## ")]
    if not headings or headings[0][1] != "## [Unreleased]":
        yield Finding(source.path, 1, "first section is not '## [Unreleased]'")
    for number, line in headings[1:]:
        found = re.fullmatch(r"## \[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})", line)
        if found is None:
            yield Finding(source.path, number, "section is not '## [X.Y.Z] - YYYY-MM-DD'")
            continue
        try:
            date.fromisoformat(found[4])
        except ValueError:
            yield Finding(source.path, number, f"{found[4]} is no date")
        versions.append((int(found[1]), int(found[2]), int(found[3])))
        if versions != sorted(versions, reverse=True):
            yield Finding(source.path, number, "versions are not newest first")
    for number, line in source.lines():
        if line.startswith("### ") and line[4:] not in CHANGE_KINDS:
            yield Finding(source.path, number, f"{line[4:]!r} is none of {', '.join(CHANGE_KINDS)}")


def links_resolve(source: Source) -> Iterator[Finding]:
    """Relative links in Markdown lead to files that exist, and to headings that are there."""
    if not source.path.endswith(".md"):
        return
    for number, line in _prose_lines(source.text):
        for target in re.findall(r"\]\(([^()\s]+)\)", line):
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            parent = PurePosixPath(source.path).parent
            file = ROOT / parent / name if name else None
            if file is not None and not file.exists():
                yield Finding(source.path, number, f"link to missing {target}")
            elif anchor:
                text = file.read_text(encoding="utf-8") if file is not None else source.text
                if anchor not in _anchors(text):
                    yield Finding(source.path, number, f"link to missing heading {target}")


def _prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of Markdown outside fenced code, with inline code removed."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def _anchors(text: str) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a Markdown text."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings)
