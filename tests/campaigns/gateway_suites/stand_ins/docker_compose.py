"""A stand-in for `docker compose start|stop|logs kafka-N`: it asks the suite that has started the brokers.

python docker_compose.py URL compose VERB … kafka-N
"""

from __future__ import annotations

import sys
import urllib.request

if __name__ == "__main__":
    url, _, verb, *arguments = sys.argv[1:]
    request = urllib.request.Request(f"{url}/{verb}/{arguments[-1].removeprefix('kafka-')}", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        print(answer.read().decode())
