"""The audit says 'nothing is known' only if the database has answered for every package."""

import json
from typing import Any

import pytest

from tests.supply_chain import audit
from tests.supply_chain.lock_file import Pin

PINS = [Pin(name="one", version="1"), Pin(name="two", version="2")]
LEAK: dict[str, Any] = {"id": "CVE-1", "fix_versions": ["1.1"]}


def answer(**vulnerabilities: list[dict[str, Any]]) -> str:
    versions = {pin.name: pin.version for pin in PINS}
    rows = [
        {"name": name, "version": versions[name], "vulns": vulns}
        for name, vulns in vulnerabilities.items()
    ]
    return json.dumps({"dependencies": rows, "fixes": []})


def test_all_packages_are_answered_for() -> None:
    code, message = audit.report(PINS, answer(one=[], two=[]), "")
    assert code == 0
    assert message == "2 of 2 packages were audited, 0 known vulnerabilities"


def test_a_vulnerability_is_named() -> None:
    code, message = audit.report(
        PINS, answer(one=[LEAK], two=[{"id": "X", "fix_versions": []}]), ""
    )
    assert code == 1
    assert "one 1: CVE-1, mended in 1.1" in message
    assert "two 2: X, mended in no version yet" in message
    assert "2 known vulnerabilities" in message


def test_a_package_without_an_answer_is_no_success() -> None:
    code, message = audit.report(PINS, answer(one=[]), "")
    assert (code, message.splitlines()) == (
        2,
        ["two 2: no answer", "1 of 2 packages were audited, 0 known vulnerabilities"],
    )
    skipped = json.loads(answer(one=[]))
    skipped["dependencies"].append({"name": "two", "version": "2", "skip_reason": "unknown"})
    assert audit.report(PINS, json.dumps(skipped), "") == (code, message)


@pytest.mark.parametrize("printed", ["", "no JSON", "[]", "{}", '{"dependencies": [{}]}'])
def test_without_network_nothing_is_known(printed: str) -> None:
    code, message = audit.report(PINS, printed, "first\nERROR: connection failed\n")
    assert code == 2
    assert message.startswith("Nothing was audited: 2 packages are without an answer.")
    assert message.endswith("ERROR: connection failed")
    assert "0 known" not in message
