"""The audit log: every entry once, in files of bounded size."""

import json
import stat
from pathlib import Path

from aenv.platform.access.audit_log import AuditLog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(log: AuditLog, number: int) -> None:
    log.write("create", user="ada", token="t1", status=200, instance=f"i-{number}")


def test_a_full_file_is_set_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, rotate_bytes=1000, keep=50)
    for number in range(100):
        write(log, number)
    log.close()
    files = sorted(tmp_path.iterdir(), key=lambda each: int(each.suffix[1:]) if each.suffix[1:].isdigit() else 0)
    assert len(files) > 5
    assert all(each.stat().st_size <= 1000 and stat.S_IMODE(each.stat().st_mode) == 0o600 for each in files)
    found = [line["instance"] for each in reversed(files) for line in lines(each)]
    assert found == [f"i-{number}" for number in range(100)]


def test_only_so_many_older_files_are_kept(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", rotate_bytes=300, keep=2)
    for number in range(50):
        write(log, number)
    log.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert lines(tmp_path / "audit.jsonl")[-1]["instance"] == "i-49"


def test_two_servers_with_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    one, other = AuditLog(path, rotate_bytes=1000, keep=99), AuditLog(path, rotate_bytes=1000, keep=99)
    for number in range(100):
        write(one if number % 3 else other, number)
    one.close()
    other.close()
    found = [line["instance"] for each in tmp_path.iterdir() for line in lines(each)]
    assert sorted(map(str, found)) == sorted(f"i-{number}" for number in range(100))
