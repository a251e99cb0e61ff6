"""`sparklog doctor --plan`: parses the load, measures this machine, and prints the plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from sparklog.cli.doctor.plan import DESCRIPTORS_MIN, STORED_1K_BYTES, Load, Machine, Need, as_lines, plan
from sparklog.cli.durations import parse_duration_ms
from sparklog.cli.sizes import parse_size_bytes


def load_of(
    rows: str, row_bytes: str, retention: str, replicas: int, brokers: int, partitions: int, readers: int, groups: int, connections: int,
    compression: str,
) -> Load:  # fmt: skip
    """Parse the options of a load. Raises typer.BadParameter."""
    if replicas > brokers:
        raise typer.BadParameter(f"--replicas {replicas} need as many brokers: add --brokers {replicas}")
    if compression not in STORED_1K_BYTES:
        raise typer.BadParameter(f"--compression {compression}: use one of {', '.join(STORED_1K_BYTES)}")
    try:
        rows_per_s = parse_size_bytes(rows, "--rows")
    except typer.BadParameter:
        raise typer.BadParameter(
            f"--rows {rows!r}: a number of rows a second is needed, as in 2000, 50k or 1.5M"
        ) from None
    size = parse_size_bytes(row_bytes, "--row-bytes")
    if not rows_per_s or not size:
        raise typer.BadParameter("--rows and --row-bytes have to be above 0")
    return Load(
        rows_per_s, size, parse_duration_ms(retention), replicas, brokers, partitions, readers, groups, connections, compression
    )  # fmt: skip


def machine_of(directory: Path) -> Machine:
    """Return the resources of this machine. The disk is that of `directory`, or of its nearest existing parent."""
    from sparklog.cli.doctor.directory_facts import disk_facts, host_facts

    place = next((p for p in (directory.absolute(), *directory.absolute().parents) if p.is_dir()), Path("/"))
    disk = disk_facts(place)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(-1 if disk is None else disk.free_bytes, pages, host_facts().descriptors_max, os.cpu_count() or -1)


def smallest_limit(files: int, connections: int) -> int:
    """Return the smallest `ulimit -n` of a broker with these numbers of segment files and connections."""
    from sparklog_broker.descriptors import share_out

    low, high = 1, DESCRIPTORS_MIN * 64
    while low < high:
        middle = (low + high) // 2
        share = share_out(middle, files, connections)
        if share.files >= files and share.connections >= connections:
            high = middle
        else:
            low = middle + 1
    return low


def run_plan(load: Load, data_dir: Path | None, *, json: bool) -> None:
    """Print the plan, compared with this machine. Raises typer.Exit: With status 1, if `data_dir` is given and this
    machine has too few resources."""
    needs = plan(load, machine_of(data_dir or Path()), smallest_limit)
    if json:
        import msgspec

        print(msgspec.json.encode({"load": load._asdict(), "needs": [_as_json(need) for need in needs]}).decode())
    else:
        for line in as_lines(needs, load.brokers):
            print(line)
    if data_dir is not None and not all(need.is_met for need in needs):
        raise typer.Exit(1)


def _as_json(need: Need) -> dict[str, Any]:
    return {**need._asdict(), "is_met": need.is_met}
