"""The code of the guide to trainers: every block runs, the ones for other libraries included."""

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/trainers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries about this machine


@pytest.mark.parametrize("library", ["lightning", "transformers", "accelerate"])
def test_the_guide_runs(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: `make integrations`")
    monkeypatch.chdir(tmp_path)
    common, *others = BLOCK.findall(GUIDE.read_text("utf-8"))
    (own,) = (code for code in others if code.startswith(f"import {library}\n"))
    names: dict[str, Any] = {"__name__": "the_guide"}
    for code in (common, own):
        exec(compile(code, str(GUIDE), "exec"), names)
    trained = names["trainer"].model.model if library == "lightning" else names["model"]
    output = trained.output
    start = output.V.new_tensor(1 / 64**0.5)  # new weights are smaller than this
    assert output.weight().abs().max() > start, "the output layer has learnt"
    assert output.recorded_gradient() is None
