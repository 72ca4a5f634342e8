"""The entry point: a package that is missing, and Ctrl-C during the imports."""

import sys

import pytest

from zloss_lab import __main__ as command


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zloss_lab.cli", None)
    monkeypatch.delitem(sys.modules, "zloss_lab.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(
        SystemExit, match=r"the lab needs typer, which is not installed: pip install zloss-lab"
    ):
        command.main()


def test_ctrl_c_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert (end.value.code, capsys.readouterr().err) == (130, "interrupted\n")
