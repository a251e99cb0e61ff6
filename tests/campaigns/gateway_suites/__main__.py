"""`make gateway-suites`: tests of Kafka's clients, by their own authors, against a broker with a gateway.

    python -m tests.campaigns.gateway_suites [SUITE…] [--run REGEX] [--short]

Exit status 1 if a test fails that is not in the suite's list, or if a listed test passes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.campaigns.gateway_suites import aiokafka, franz_go, java, kafka_python, librdkafka, sarama, schemas
from tests.campaigns.gateway_suites.python_suites import is_reachable

SUITES: dict[str, ModuleType] = {
    "franz-go": franz_go,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "sarama": sarama,
    "librdkafka": librdkafka,
    "java": java,
    "schemas": schemas,
}
RECORDS = 100_000


def short_pattern(suite: ModuleType) -> str:
    """Regular expression of the tests of the short run."""
    return str(suite.listed()["short"])


def lacks(suite: ModuleType) -> list[str]:
    """The programs, headers and sources that the suite needs and this machine does not have."""
    missing = [need for need in suite.NEEDS if shutil.which(need) is None and not Path("/usr/include", need).exists()]
    if not missing and hasattr(suite, "source") and not is_reachable(suite.source()):
        missing.append(f"access to {suite.source().address}")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="default: all")
    parser.add_argument("--records", type=int, default=RECORDS, help=f"of franz-go's large tests (default {RECORDS:,})")
    parser.add_argument("--run", help="regular expression of the tests; of schemas: of the clients")
    parser.add_argument("--short", action="store_true", help="only the tests of the nightly run")
    parser.add_argument("--built", type=Path, help="kgo.test, or a suite's directory, from an earlier run")
    given = parser.parse_args()
    is_good = True
    for name in given.suites or SUITES:
        suite = SUITES[name]
        missing = lacks(suite)
        if missing:
            print(f"error: {name} needs {', '.join(missing)}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory(prefix="sparklog-suites-") as scratch:
            pattern = short_pattern(suite) if given.short else given.run
            verdict, output = suite.verify(Path(scratch), given.records, pattern, given.built)
        print(verdict.report(name))
        if not verdict.is_good:
            is_good = False
            print(output[-40_000:])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
