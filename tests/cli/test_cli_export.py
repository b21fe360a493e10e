"""`ncsam export` prints its own lines alone."""

import logging
import sys
import warnings

import pytest
import torch
from cli_cases import call


def test_what_libraries_say_while_a_graph_is_made_is_not_printed(tmp_path, trained, monkeypatch, capfd):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)

    def loud(network, arguments, path, **_):
        print("a table of operators")
        print("a package is missing", file=sys.stderr)
        warnings.warn("a name will change", FutureWarning, stacklevel=1)
        logging.getLogger("torch.onnx").error("skipped an operator")
        with open(path, "wb") as file:
            file.write(b"graph")

    monkeypatch.setattr(torch.onnx, "export", loud)
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("torch.onnx").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            said = call("export", trained, "--format", "onnx", "--out", tmp_path / "m.onnx").output
    finally:
        logging.getLogger("torch.onnx").removeHandler(handler)
    assert said == f"{tmp_path / 'm.onnx'}\n{tmp_path / 'm.json'}\n"
    assert (tuple(capfd.readouterr()), heard, logging.root.manager.disable) == (("", ""), [], 0)
    assert (tmp_path / "m.onnx").read_bytes() == b"graph"
