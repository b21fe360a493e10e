"""`ncsam bound` and `ncsam align` on a small run."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from ncsam import theory
from ncsam.cli.main import main
from ncsam.engine import RunConfig, train
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow  # one training of a few epochs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    config = RunConfig(
        rho=0.05,
        data="digits",
        noise="symmetric",
        rate=0.4,
        epochs=4,
        warmup=0.5,
        model_options={"hidden": [16]},
        telemetry_every=5,
    )
    train(config, folder, console=False)
    return folder


def answer(*arguments):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_bound_prints_the_terms_and_says_that_it_is_vacuous(run):
    code, output = answer("bound", run, "--steps", 2, "--restarts", 1)
    assert code == 0
    assert "The bound is vacuous" in output
    for word in ("empirical", "gaussian_tail", "complexity", "total", "zero_one"):
        assert word in output


def test_bound_is_the_theorem_at_the_runs_own_numbers(run):
    code, output = answer("bound", run, "--steps", 2, "--restarts", 1, "--loss", "clipped", "--rho", 0.3, "--json")
    assert code == 0
    found = json.loads(output)
    with np.load(run / "noise.npz") as record:
        wrong = float(np.mean(record["noisy"] != record["clean"]))
    assert found["alpha"] == pytest.approx(wrong, abs=0.03)  # of the samples that are not held out
    assert found["num_parameters"] == 64 * 16 + 16 + 16 * 10 + 10
    assert found["neighborhood_loss"] > found["loss_at_w"]
    terms = theory.noisy_label_bound(
        found["neighborhood_loss"],
        found["n"],
        found["alpha"],
        found["num_parameters"],
        found["weight_norm"],
        0.3,
        0.05,
    )
    for name in ("empirical", "gaussian_tail", "complexity", "total", "sigma"):
        assert found[name] == pytest.approx(getattr(terms, name))
    assert found["clean_samples"] == pytest.approx(found["n"] * (1 - found["alpha"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--alpha", 1.5), "alpha=1.5"), (("--rho", 0), "rho=0"), (("--delta", 2), "delta=2"), (("--loss", "mse"), "mse")],
)
def test_mistakes_end_in_one_sentence(run, options, message):
    code, output = answer("bound", run, *options)
    assert code == 2
    assert message in output


def test_bound_refuses_labels_that_have_changed(run, tmp_path):
    import shutil

    other = tmp_path / "copy"
    shutil.copytree(run, other)
    state = load_checkpoint(other / "checkpoints")
    save_checkpoint(other / "checkpoints", {**state, "labels_sha256": "0" * 64}, {})
    code, output = answer("bound", other)
    assert code == 2
    assert "changed" in output


def test_align_agrees_with_the_record_and_draws(run):
    code, output = answer("align", run, "--batches", 5)
    assert code == 0
    assert (run / "alignment.png").read_bytes().startswith(b"\x89PNG")
    assert "along training" in output
    assert "NCSAM's perturbation points" in output
    code, output = answer("align", run, "--batches", 5, "--json")
    found = json.loads(output)
    assert found["batches"] == 5
    assert sorted(found["telemetry"]["cos_clean"]) == ["3", "4"]  # epochs 1 and 2 are warm-up
    at = found["checkpoint"]
    assert 0.2 < at["noise_share"] < 0.6
    assert found["gain"] == pytest.approx(at["cos_clean"] - at["cos_clean_sam"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found["telemetry"]["cos_clean_sam"]["4"] == rows[3]["telemetry"]["cos_clean_sam"]


def test_align_at_another_radius_and_without_compensation(run):
    ratios = []
    for rho in (0.1, 1.0):
        code, output = answer("align", run, "--batches", 3, "--rho", rho, "--json")
        assert code == 0
        ratios.append(json.loads(output)["checkpoint"]["compensation_ratio"])
    assert ratios[0] == pytest.approx(10 * ratios[1], rel=1e-6)
    code, output = answer("align", run, "--batches", 3, "--kappa", 0, "--json")
    plain = json.loads(output)["checkpoint"]
    assert plain["cos_clean"] == plain["cos_clean_sam"]
    assert plain["cos_sam"] == 1.0


def test_align_needs_clean_labels(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(60, 4)).astype(np.float32), y=rng.integers(0, 2, 60))
    config = RunConfig(data=str(tmp_path / "own.npz"), epochs=1, model_options={"hidden": [4]}, val_share=0.0, rho=0.05)
    train(config, tmp_path / "run", console=False)
    code, output = answer("align", tmp_path / "run")
    assert code == 2
    assert "clean labels are known" in output
    code, output = answer("bound", tmp_path / "run", "--steps", 1)
    assert code == 2
    assert "--alpha" in output or "alpha=None" in output
    code, output = answer("bound", tmp_path / "run", "--steps", 1, "--alpha", 0.1)
    assert code == 0
