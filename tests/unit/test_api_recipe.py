"""CONTRIBUTING's recipe for an API, followed in a copy of the source tree: an administrative operation is stated in few
places, and the tests of every API then cover it.

The copy gets DESCRIBE_UPTIME, which answers with the broker's process id and the requested label.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES_MAX = 6
COPIED = ("sparklog", "broker_daemon", "datasource", "tests", "conf", "docs", "pyproject.toml", "README.md", "Makefile")

MESSAGES = '''

class DescribeUptimeRequest(Message):
    """Request a broker's process id. `label`: a text that the answer repeats."""

    label: Text = ""


class DescribeUptimeResponse(Message):
    """The process id, and the request's label."""

    process_id: int
    label: Text
    throttle_ms: ThrottleMs = 0
'''
HANDLER = '''"""DESCRIBE_UPTIME: the broker's process."""

from __future__ import annotations

import os

from sparklog.protocol.operation_messages import DescribeUptimeRequest, DescribeUptimeResponse
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def describe_uptime(request: DescribeUptimeRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the process id."""
    return Response(DescribeUptimeResponse(os.getpid(), request.label))
'''
CALL = '''
    def describe_uptime(self, label: str) -> int:
        """Return a broker's process id.

        Args:
            label: A text that the broker repeats.

        Returns:
            The process id.
        """
        request = operation_messages.DescribeUptimeRequest(label)
        response = operation_messages.DescribeUptimeResponse
        return self._call().ask(request, response).process_id
'''
ROW = """    Api.DESCRIBE_UPTIME: ApiSpec(
        operation.DescribeUptimeRequest,
        operation.DescribeUptimeResponse,
        5,
        5,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE, cluster_name),),
    ),
}
"""
PROGRAM = """
import sparklog
from sparklog.client.admin.admin import Admin

with sparklog.start_local() as broker, Admin(broker.bootstrap_servers) as admin:
    print(admin.describe_uptime("first"))
"""


class SourceTree:
    """A copy of the source tree, and the files that were changed by hand in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places: set[str] = set()
        ignored = shutil.ignore_patterns("__pycache__", "*.bin", "notebooks", "benchmarks", ".venv")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=None if name == "tests" else ignored)
            else:
                shutil.copy(source, root / name)

    def edit(self, path: str, pattern: str, text: str) -> None:
        """Insert the text at the end of the pattern's only match; an empty pattern is the end of the file."""
        file = self.root / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        if pattern:
            (match,) = re.finditer(pattern, before)
            file.write_text(before[: match.end()] + text + before[match.end() :], encoding="utf-8")
        else:
            file.write_text(before + text, encoding="utf-8")
        self.places.add(path)

    def run(self, *arguments: str) -> str:
        paths = [str(self.root), str(self.root / "broker_daemon"), str(self.root / "datasource")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
        return done.stdout


def test_an_administrative_api_has_few_places(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path)
    tree.edit("sparklog/protocol/operation_messages.py", "", MESSAGES)
    tree.edit("sparklog/protocol/operation_messages.py", r"from sparklog\.protocol\.base import \(", "\n    Text,")
    tree.edit("sparklog/protocol/apis.py", r"    DESCRIBE_LAKES = \d+\n", "    DESCRIBE_UPTIME = 900\n")
    apis = tmp_path / "sparklog/protocol/apis.py"
    apis.write_text(apis.read_text(encoding="utf-8").rstrip().removesuffix("}") + ROW, encoding="utf-8")
    tree.edit("broker_daemon/sparklog_broker/handlers/uptime.py", "", HANDLER)
    registry = "broker_daemon/sparklog_broker/registry.py"
    tree.edit(registry, r"from sparklog_broker\.handlers import \(", "\n    uptime,")
    tree.edit(registry, r"HANDLERS: dict\[Api, Handler\] = \{", "\n    Api.DESCRIBE_UPTIME: uptime.describe_uptime,")
    admin = "sparklog/client/admin/admin.py"
    tree.edit(admin, r"(?=\n    def describe_log_dirs)", CALL)
    tree.edit(admin, r"import pyarrow as pa\n", "from sparklog.protocol import operation_messages\n")
    golden = "tests/golden/make_golden.py"
    tree.edit(
        golden,
        r"REQUESTS: dict\[Api, Message\] = \{",
        "\n    Api.DESCRIBE_UPTIME: operation.DescribeUptimeRequest('nightly'),",
    )
    tree.edit(
        golden,
        r"RESPONSES: dict\[Api, Message\] = \{",
        "\n    Api.DESCRIBE_UPTIME: operation.DescribeUptimeResponse(12, 'nightly'),",
    )
    assert len(tree.places) <= PLACES_MAX, tree.places

    tree.run("tests/golden/make_golden.py")
    tree.run("tests/golden/api_fields.py")
    tree.run("docs/generate_tables.py")
    assert "`DESCRIBE_UPTIME` | Describe on cluster" in (tmp_path / "docs/internals/security.md").read_text(
        encoding="utf-8"
    )
    assert int(tree.run("-c", PROGRAM)) > 0
    summary = tree.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("tests/unit/broker/security/test_denial_matrix.py", "tests/unit/broker/test_registry.py"),
        *("tests/unit/protocol/test_permissions.py", "tests/unit/protocol/test_messages.py"),
        *("-k", "UPTIME or every_api or handler"),
    )
    assert re.search(r"\b[1-9]\d* passed", summary), summary
