"""The variants by hand, through scalers, copies and restarts; and how the registry finds them."""

import ast
import copy
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin
from torch import nn

import ncsam.optim
from ncsam import ASAM, SAM, SANER, FriendlySAM

ALL = {name: ncsam.optim.get(name) for name in ncsam.optim.names()}
NEW = {"asam": ASAM, "friendlysam": FriendlySAM, "saner": SANER}


def step(optimizer, model, i, **options):
    x, y = batch(i, dtype=next(model.parameters()).dtype)
    return optimizer.step(lambda: model(x), y, **options)


def quadratic(logits, targets):
    """0.5 sum a z^2 with a = (1, 4): gradient a z."""
    return 0.5 * (logits**2 * torch.tensor([1.0, 4.0], dtype=logits.dtype)).sum()


# --- by hand


def test_friendlysam_by_hand():
    """At w = (3, 1), g = (3, 4). The first step is SAM's; the weights stay, so d = g - m = 0 is refused in the second.
    At w = (0, 1) then g = (0, 4), m = (3, 4), d = (-3, 0), eps = .5 (-1, 0), and the gradient there (-.5, 4)."""
    w = nn.Parameter(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    optimizer = FriendlySAM(torch.optim.SGD([w], lr=0.0), rho=0.5, decay=0.5, criterion=quadratic)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert w.grad[0].tolist() == pytest.approx([3.3, 5.6])
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert optimizer.unperturbed_steps == 1
    with torch.no_grad():
        w[0, 0] = 0.0
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert w.grad[0].tolist() == pytest.approx([-0.5, 4.0])
    assert optimizer.vectors["average"][w][0].tolist() == pytest.approx([1.5, 4.0])


def test_saner_by_hand():
    """L = a^2/2 - b^4/4 at (3, 1): g = (3, -1), so eps = r (3, -1) with r = 1/sqrt(10); g' = (3 + 3r, -(1 - r)^3).
    The first coordinate grows; the second keeps its sign and is shorter, and so is halved."""
    w = nn.Parameter(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    optimizer = SANER(torch.optim.SGD([w], lr=0.0), rho=1.0, criterion=lambda z, y: z[0, 0] ** 2 / 2 - z[0, 1] ** 4 / 4)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    r = 10**-0.5
    assert w.grad[0].tolist() == pytest.approx([3 + 3 * r, -0.5 * (1 - r) ** 3])


def test_asam_is_sam_with_adaptive():
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = ASAM(sgd(model)), SAM(sgd(other), 0.5, adaptive=True, eta=0.01)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize(("kind", "options"), [(SANER, {"alpha": 1.0}), (FriendlySAM, {"sigma": 0.0})])
def test_switched_off_they_are_sam(kind, options):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = kind(sgd(model), 0.2, **options), SAM(sgd(other), 0.2)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))


# --- as every optimizer must


@pytest.mark.parametrize("kind", NEW.values(), ids=NEW)
def test_the_loss_scale_is_no_part_of_it(kind):
    model = network()
    other = twin(model)
    left, right = kind(sgd(model), 0.2), kind(sgd(other), 0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(4):
        step(left, model, i, scaler=scaler)
        scaler.update()
        step(right, other, i)
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_restored_and_reduced(kind):
    """With lr 0 the weights come back bit for bit; with rho 0 the step is the base optimizer's."""
    model = network("convolutional", torch.float32)
    before = parameters(model)
    optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.3, total_steps=4)
    for i in range(3):
        step(optimizer, model, i)
    assert same_bits(before, parameters(model))
    other = twin(model)
    optimizer, base = kind(sgd(model), rho=0.0, total_steps=4), sgd(other)
    x, y = batch(dtype=torch.float32)
    optimizer.step(lambda: model(x), y)
    torch.nn.functional.cross_entropy(other(x), y).backward()
    base.step()
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
@pytest.mark.parametrize("rho", [0.2, "auto"])
def test_resume_is_bit_for_bit(kind, rho):
    model = network("convolutional", torch.float32)
    optimizer = kind(sgd(model), rho=rho, total_steps=8)
    for i in range(3):
        step(optimizer, model, i)
    again = twin(model)
    resumed = kind(sgd(again), rho=rho, total_steps=8)
    step(resumed, again, 9)  # what it remembers by now is forgotten
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for i in range(3, 6):
        step(optimizer, model, i)
        step(resumed, again, i)
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(again), *again.buffers()])


# --- the registry


def test_names_and_files():
    """Every variant is found by its file, of at most 60 lines where it is new, and says what it does."""
    assert sorted(ALL) == [
        "asam",
        "bsam",
        "friendlysam",
        "ncsam",
        "ncsam-authors",
        "sam",
        "sam-length-matched",
        "saner",
    ]
    for name in NEW:
        assert lines_of_code(inspect.getfile(ALL[name])) <= 60
    assert all((kind.__doc__ and ".. math::" in kind.__doc__) or "math:`" in kind.__doc__ for kind in ALL.values())


def lines_of_code(file):
    """Lines of a file without its docstrings."""
    text = Path(file).read_text()
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    first = [n.body[0] for n in nodes if ast.get_docstring(n) is not None]
    return len(text.splitlines()) - sum(n.end_lineno - n.lineno + 1 for n in first)


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_every_option_is_in_the_signature_and_the_docstring(kind):
    parameters = inspect.signature(kind).parameters
    assert not [p for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    shared = {"rho", "criterion", "total_steps", "warmup_steps", "rho_target", "model", "telemetry_every"}
    assert shared <= set(parameters)
    section = inspect.getdoc(kind).partition("Args:\n")[2].partition("\n\n")[0]
    own = inspect.signature(vars(kind)["__init__"]).parameters if "__init__" in vars(kind) else {}
    named = {*own, *shared, "base_optimizer"} - {"self", "options"}
    assert not [name for name in named if f"    {name}: " not in section]


def test_traits():
    """Costs in gradients, and what the engine needs to know of an optimizer without knowing its name."""
    traits = {name: (kind.passes, kind.flips_labels, kind.default_warmup) for name, kind in ALL.items()}
    assert traits["sam"] == (2, False, 0.0)
    assert traits["ncsam"] == traits["ncsam-authors"] == (3, True, 0.25)
    assert traits["bsam"] == (3, False, 0.0)


def test_options_of_a_variant():
    names = ncsam.optim.option_names(SANER)
    assert names[:2] == ["rho", "alpha"]
    assert {"criterion", "telemetry_every", "rho_target"} <= set(names)
    with pytest.raises(TypeError, match="unknown option of SANER 'alhpa'"):
        SANER(sgd(network()), alhpa=1.0)
    with pytest.raises(ValueError, match=r"unknown optimizer 'sanr'\. Did you mean 'saner'"):
        ncsam.optim.get("sanr")


def test_a_file_put_beside_the_others_is_found(tmp_path):
    """As the recipe says: one file with `@register`. It is put on the package's path, not into the package."""
    (tmp_path / "halfsam.py").write_text(
        '"""SAM that steps on half of its gradient."""\n'
        "from ncsam.optim.registry import register\n"
        "from ncsam.optim.sam import ascent\n"
        "from ncsam.optim.sharpness_aware import SharpnessAware\n\n\n"
        "@register\nclass HalfSAM(SharpnessAware):\n"
        "    def moves(self, step):\n"
        "        for move in ascent(step, *step.gradients()):\n"
        "            yield move\n"
        "            for p in step.params:\n"
        "                p.grad *= 0.5\n"
    )
    code = (
        "import ncsam.optim, torch\n"
        f"ncsam.optim.__path__.append({str(tmp_path)!r})\n"
        "from ncsam.engine import RunConfig\n"
        "assert RunConfig(optimizer='halfsam').sharpness_aware\n"
        "w = torch.nn.Parameter(torch.tensor([[3.0, 1.0]]))\n"
        "kind = ncsam.optim.get('halfsam')\n"
        "optimizer = kind(torch.optim.SGD([w], lr=0.0), 0.5, criterion=lambda z, y: (z * z).sum() / 2)\n"
        "optimizer.step(lambda: w * 1.0, torch.tensor([0]))\n"
        "expected = 0.5 * w.detach() * (1 + 0.5 / w.detach().norm())\n"
        "torch.testing.assert_close(w.grad, expected)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
