"""Ask a public database for known vulnerabilities of all that `make` installs; `make audit` runs it.

    make audit
    make audit AUDIT='--osv-url https://mirror.example/v1/query'    # a mirror of osv.dev

It needs pip-audit, which `make audit` installs into a folder of its own, and access to https://api.osv.dev. The exit
code is 1 if the database knows of something, and 2 if a package is without an answer. So it is 2 without network. It
is 0 if the database has answered for every package and knows of nothing.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.supply_chain.lock_file import (
    CONSTRAINTS,
    INTEGRATIONS,
    LOCKED,
    TEXT_OF_THE_DEMO,
    TOOLS,
    Pin,
    normalized,
    read_pins,
)

FILES = (LOCKED, TOOLS, INTEGRATIONS, TEXT_OF_THE_DEMO, CONSTRAINTS)
NOTHING_KNOWN, VULNERABLE, NO_ANSWER = 0, 1, 2


def report(pins: list[Pin], answer: str, errors: str) -> tuple[int, str]:
    """Return the exit code and what to say, from the answer of pip-audit in JSON."""
    asked = {(pin.name, pin.version) for pin in pins}
    try:
        rows = json.loads(answer)["dependencies"]
        answered = {
            (normalized(row["name"]), row["version"]) for row in rows if "skip_reason" not in row
        }
        found = {
            f"{row['name']} {row['version']}: {vulnerability['id']}, mended in "
            f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
            for row in rows
            for vulnerability in row.get("vulns", ())
        }
    except (ValueError, KeyError, TypeError):
        reason = (errors.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return NO_ANSWER, (
            f"Nothing was audited: {len(asked)} packages are without an answer. This needs access to "
            f"https://api.osv.dev. The last words of pip-audit: {reason}"
        )
    lines = sorted(found)
    missing = sorted(asked - answered)
    if missing:
        lines += [f"{name} {version}: no answer" for name, version in missing]
    lines.append(
        f"{len(asked) - len(missing)} of {len(asked)} packages were audited, "
        f"{len(found)} known vulnerabilities"
    )
    code = VULNERABLE if found else NO_ANSWER if missing else NOTHING_KNOWN
    return code, "\n".join(lines)


def ask(pins: list[Pin], options: list[str]) -> tuple[str, str]:
    """Return what pip-audit prints and its messages, for the packages of all platforms."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--progress-spinner", "off", "--format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names.txt"
        names.write_text("\n".join(sorted({f"{pin.name}=={pin.version}" for pin in pins})), "utf-8")
        command += ["--requirement", str(names), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def main(options: list[str]) -> int:
    """Audit the packages of all lock files, and say what was found."""
    pins = read_pins(*FILES)
    code, message = report(pins, *ask(pins, options))
    print(message, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
