"""The page on noise shows what really comes out."""

import re
from pathlib import Path

import pytest

from ncsam import noise

PAGE = (Path(__file__).parents[2] / "docs" / "noise.md").read_text(encoding="utf-8")
LINES = re.findall(r'```console\n\$ python -c "(.+?)"\n(.+?)\n```', PAGE, flags=re.DOTALL)


def test_every_generator_has_its_line():
    for name in noise.GENERATORS:
        assert any(f"noise.{name}(" in code for code, _ in LINES), name


@pytest.mark.parametrize(("code", "printed"), LINES, ids=range(len(LINES)))
def test_lines_print_what_the_page_says(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out.rstrip() == printed


def test_the_example_of_an_own_noise_type_works(monkeypatch):
    monkeypatch.setattr(noise, "GENERATORS", dict(noise.GENERATORS))
    code = re.search(r"```python\n(from ncsam import noise\nfrom ncsam.noise.inputs.+?)```", PAGE, flags=re.DOTALL)
    exec(code[1], {})
    record = noise.make("to_zero", [0, 1, 2, 1] * 100, 0.5, seed=0)
    assert set(record.noisy[record.mask]) == {0}
    assert 100 < record.mask.sum() < 200


def test_checksums_and_maps_are_listed():
    assert dict(re.findall(r"^\| `([^`]+\.pt)` \| `([0-9a-f]{16})` \|$", PAGE, flags=re.MULTILINE)) == noise.KNOWN_FILES
    assert all(f'"{name}"' in PAGE for name in noise.MAPS)
