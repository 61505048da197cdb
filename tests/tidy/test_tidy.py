"""The project's own rules hold in every file of the tree, and each rule is able to fail.

Layers between packages are import-linter's (`make lint`); style is ruff's; this is the rest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import document_rules, python_rules
from tests.tidy.document_rules import (
    changelog_is_kept,
    links_resolve,
    project_speaks_of_itself,
    proto_is_commented,
    proto_is_plain,
    text_is_finished,
)
from tests.tidy.python_rules import (
    doors_are_closed,
    functions_fit_a_screen,
    modules_fit_a_sitting,
    names_say_something,
    order_is_decided,
    public_things_are_documented,
    services_do_not_know_the_world,
)
from tests.tidy.source import ROOT, Finding, Rule, Source, project_sources

RULES: tuple[Rule, ...] = (
    doors_are_closed,
    order_is_decided,
    services_do_not_know_the_world,
    names_say_something,
    functions_fit_a_screen,
    modules_fit_a_sitting,
    public_things_are_documented,
    proto_is_plain,
    proto_is_commented,
    text_is_finished,
    project_speaks_of_itself,
    changelog_is_kept,
    links_resolve,
)

SERVICE = "jobmanager/dispatcher.py"
PROTO = "proto/holdover/v1/example.proto"
PROTO_HEAD = 'syntax = "proto3";\npackage holdover.v1;\n'
LOG_HEAD = "# Changelog\n\n## [Unreleased]\n"

BAD: list[tuple[Rule, str, str, str]] = [
    (doors_are_closed, SERVICE, "import time\ntime.monotonic()", "time.monotonic reads a clock"),
    (doors_are_closed, SERVICE, "from time import monotonic as now\nnow()", "reads a clock"),
    (doors_are_closed, SERVICE, "from datetime import datetime\ndatetime.now()", "reads a clock"),
    (doors_are_closed, SERVICE, "import random\nrandom.random()", "draws a random number"),
    (doors_are_closed, SERVICE, "import numpy as np\nnp.random.rand()", "draws a random number"),
    (doors_are_closed, SERVICE, "import uuid\nuuid.uuid4()", "makes a uuid"),
    (doors_are_closed, SERVICE, "with open('f') as f: pass", "touches the disk"),
    (doors_are_closed, SERVICE, "async def f(p):\n    return p.read_text()", "touches the disk"),
    (doors_are_closed, SERVICE, "import os\nos.path.exists('f')", "touches the disk"),
    (doors_are_closed, SERVICE, "from pyarrow import csv\ncsv.read_csv('f')", "touches the disk"),
    (doors_are_closed, SERVICE, "import threading\nthreading.Thread()", "starts a thread"),
    (doors_are_closed, SERVICE, "import asyncio\nasyncio.to_thread(f)", "starts a thread"),
    (doors_are_closed, SERVICE, "import subprocess\nsubprocess.run([])", "starts a thread or proc"),
    (doors_are_closed, SERVICE, "import socket\nsocket.socket()", "opens a socket"),
    (doors_are_closed, SERVICE, "import grpc\ngrpc.aio.server()", "makes a gRPC channel or server"),
    (doors_are_closed, SERVICE, "from grpc import aio\naio.insecure_channel('')", "gRPC channel"),
    (doors_are_closed, "holdover/api/job.py", "open('f')", "touches the disk"),
    (doors_are_closed, "taskmanager/task_executor.py", "import os\nos.fork()", "starts a thread"),
    (doors_are_closed, "simulator/swarm.py", "import random\nrandom.Random()", "draws a random"),
    (doors_are_closed, "simulator/swarm.py", "import random\nrandom.random()", "draws a random"),
    (doors_are_closed, "simulator/world/loop.py", "import time\ntime.time()", "reads a clock"),
    (doors_are_closed, SERVICE, "import random\nrandom.Random(7)", "draws a random number"),
    (order_is_decided, SERVICE, "import asyncio\nasyncio.as_completed([])", "no fixed order"),
    (order_is_decided, SERVICE, "from asyncio import as_completed", "no fixed order"),
    (order_is_decided, SERVICE, "for x in {1, 2}: pass", "loop over a set"),
    (order_is_decided, SERVICE, "y = [x for x in set(z)]", "loop over a set"),
    (services_do_not_know_the_world, SERVICE, "if runtime.is_simulated: pass", "is_simulated"),
    (names_say_something, "shuffle/utils.py", "", "module name 'utils'"),
    (names_say_something, "shuffle/common/blocks.py", "", "module name 'common'"),
    (names_say_something, SERVICE, "class DefaultScheduler: pass", "class name DefaultScheduler"),
    (names_say_something, SERVICE, "class StoreImpl: pass", "class name StoreImpl"),
    (names_say_something, SERVICE, "class SlotFactory: pass", "class name SlotFactory"),
    (functions_fit_a_screen, SERVICE, "def f():\n" + "    x = 1\n" * 70, "f has 71 lines"),
    (modules_fit_a_sitting, SERVICE, "x = 1\n" * 501, "501 lines"),
    (public_things_are_documented, SERVICE, "x = 1", "module without docstring"),
    (public_things_are_documented, SERVICE, '"""M."""\nclass Slot: pass', "Slot without docstring"),
    (public_things_are_documented, SERVICE, '"""M."""\nasync def f(): pass', "f without docstring"),
    (proto_is_plain, PROTO, "message M { map<string, int32> m = 1; }", "map field"),
    (proto_is_plain, PROTO, "// " + "x" * 120, "123 characters"),
    (proto_is_commented, PROTO, PROTO_HEAD + "message M {}", "M without comment"),
    (proto_is_commented, PROTO, PROTO_HEAD + "// M.\nmessage M { int32 a = 1; }", "M.a without"),
    (proto_is_commented, PROTO, PROTO_HEAD + "// M.\nmessage M { message N {} }", "N without"),
    (proto_is_commented, PROTO, PROTO_HEAD + "// E.\nenum E { A = 0; }", "E.A without"),
    (
        proto_is_commented,
        PROTO,
        PROTO_HEAD + "// M.\nmessage M {}\n// S.\nservice S { rpc Do(M) returns (M); }",
        "S.Do without",
    ),
    (text_is_finished, "Makefile", "# TODO later", "TODO note"),
    (project_speaks_of_itself, "README.md", "see /work/main", "machine path: '/work/"),
    (project_speaks_of_itself, "README.md", "pip --index-url x", "registry setting"),
    (project_speaks_of_itself, "README.md", "https://pypi.example.org/simple", "registry host"),
    (project_speaks_of_itself, SERVICE, "# as asked in issue 2", "issue number"),
    (changelog_is_kept, "CHANGELOG.md", "# Changes\n\n## [Unreleased]\n", "does not start with"),
    (changelog_is_kept, "CHANGELOG.md", "# Changelog\n\n## [1.0.0] - 2026-01-01\n", "Unreleased"),
    (changelog_is_kept, "CHANGELOG.md", LOG_HEAD + "### Stuff\n", "'Stuff' is none of"),
    (changelog_is_kept, "CHANGELOG.md", LOG_HEAD + "## 1.0\n", "section is not"),
    (changelog_is_kept, "CHANGELOG.md", LOG_HEAD + "## [1.0.0] - 2026-02-30\n", "is no date"),
    (
        changelog_is_kept,
        "CHANGELOG.md",
        LOG_HEAD + "## [1.0.0] - 2026-01-01\n## [2.0.0] - 2026-02-02\n",
        "not newest first",
    ),
    (links_resolve, "docs/page.md", "[x](nowhere.md)", "link to missing nowhere.md"),
    (links_resolve, "docs/page.md", "# Here\n[x](#there)", "link to missing heading #there"),
]

GOOD: list[tuple[Rule, str, str]] = [
    (doors_are_closed, "holdover/runtime/real_clock.py", "import time\ntime.monotonic()"),
    (doors_are_closed, "taskmanager/task.py", "open('f')"),
    (doors_are_closed, SERVICE, "import os\nos.path.join('a', 'b')"),
    (doors_are_closed, SERVICE, "async def f(disk):\n    await disk.open('f')"),
    (doors_are_closed, SERVICE, "import uuid\nuuid.UUID('0' * 32)"),
    (
        doors_are_closed,
        SERVICE,
        "import pyarrow as pa\nfrom pyarrow import csv\ncsv.read_csv(pa.BufferReader(b''))",
    ),
    (doors_are_closed, "simulator/swarm.py", "import random\nrandom.Random(7)"),
    (order_is_decided, SERVICE, "for x in sorted({1, 2}): pass"),
    (functions_fit_a_screen, SERVICE, "def f():\n" + "    x = 1\n" * 69),
    (modules_fit_a_sitting, SERVICE, "x = 1\n" * 500),
    (proto_is_commented, PROTO, PROTO_HEAD + "// M.\nmessage M {\n  int32 a = 1;  // A.\n}"),
    (links_resolve, "docs/page.md", "# A b\n[x](#a-b) [y](../README.md) [z](https://a.b/c)"),
    (changelog_is_kept, "CHANGELOG.md", LOG_HEAD + "### Added\n## [1.0.0] - 2026-01-01\n"),
]


def _listing(findings: list[Finding]) -> str:
    return "\n".join(map(str, findings))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds_everywhere(rule: Rule) -> None:
    findings = [finding for source in project_sources() for finding in rule(source)]
    assert not findings, f"{rule.__doc__}\n{_listing(findings)}"


@pytest.mark.parametrize(("rule", "path", "text", "message"), BAD)
def test_the_rule_finds_a_breach(rule: Rule, path: str, text: str, message: str) -> None:
    assert message in _listing(list(rule(Source(path, text))))


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_the_rule_leaves_good_code_alone(rule: Rule, path: str, text: str) -> None:
    assert _listing(list(rule(Source(path, text)))) == ""


def test_every_rule_is_run_and_shown_to_fail() -> None:
    written = {
        rule
        for module in (python_rules, document_rules)
        for name, rule in vars(module).items()
        if callable(rule) and getattr(rule, "__module__", "") == module.__name__ and name[0] != "_"
    }
    assert written == set(RULES) == {rule for rule, *_ in BAD}


def test_long_modules_exist() -> None:
    assert [path for path in python_rules.LONG_MODULES if not Path(ROOT / path).is_file()] == []
