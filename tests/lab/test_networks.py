"""The language model: its shape, its definition, its gradients, and that every head trains in it."""

import copy
import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zloss
from tests.gpu import no_synchronisation
from zloss.heads.config import HEADS
from zloss_lab.experiments import preset_network
from zloss_lab.hidden import RectifiedLinear
from zloss_lab.networks import SCALABLE_HEADS, NetworkConfig, NgramNetwork

CLASSES, CONTEXT, ROWS = 40, 3, 12
COUNTS = torch.arange(CLASSES, 0, -1)
every_head = pytest.mark.parametrize("head", HEADS)
every_trunk = pytest.mark.parametrize("trunk", ["sgd", "adam"])


def small(head: str = "factored", **options: Any) -> NetworkConfig:
    defaults: dict[str, Any] = {
        "context": CONTEXT,
        "embedding": 5,
        "hidden": (16, 8),
        "head": made(head),
    }
    return NetworkConfig(**(defaults | options))


def made(head: str) -> zloss.HeadConfig:
    """Cutoffs and samples that fit the few classes here."""
    options: dict[str, dict[str, Any]] = {
        "adaptive": {"cutoffs": [8], "div_value": 2.0},
        "sampled": {"num_samples": 10},
    }
    return zloss.HeadConfig(head=head, options=options.get(head, {}))


def build(config: NetworkConfig, device: torch.device | None = None) -> NgramNetwork:
    return NgramNetwork(config, CLASSES, counts=COUNTS, device=device)


def batch(device: torch.device | None = None, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    words = torch.arange(rows * (CONTEXT + 1)).square() % (
        CLASSES // 2
    )  # the rarer half occurs in no context
    windows = words.reshape(rows, CONTEXT + 1).to(device)
    return windows[:, :-1], windows[:, -1]


def clones(network: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def trunk_parameters(network: NgramNetwork) -> list[nn.Parameter]:
    return [*network.embedding.parameters(), *network.layers.parameters()]


# ---- shape -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("net1", (10 * 512, 2048, 2048, 512)),
        ("net2", (10 * 1024, 4096, 4096, 1024)),
        ("ptb", (6 * 128, 512, 256)),
    ],
)
def test_presets_have_the_sizes_of_the_paper(name: str, sizes: tuple[int, ...]) -> None:
    config = preset_network(name)
    assert config.sizes == sizes
    assert (config.head.head, config.head.loss, config.dropout) == ("factored", "z_loss", 0.0)
    assert config.context == (6 if name == "ptb" else 10)
    network = NgramNetwork(replace(config, head=made("dense")), 793_471, device="meta")
    assert network.embedding.weight.shape == (793_471, config.embedding)
    widths = [
        (layer.in_features, layer.out_features)
        for layer in network.layers
        if isinstance(layer, nn.Linear)
    ]
    assert widths == list(pairwise(sizes))
    assert network.head.in_features == sizes[-1]


def test_a_forward_pass_by_hand(device: torch.device) -> None:
    network = build(small("dense"), device)
    context, target = batch(device)
    first, second = network.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    with torch.no_grad():
        first.bias.normal_()
        second.bias.normal_()
    rows = []
    for words in context.tolist():
        x = torch.cat([network.embedding.weight[word] for word in words])
        x = (first.weight @ x + first.bias).clamp_min(0)
        rows.append((second.weight @ x + second.bias).clamp_min(0))
    h = torch.stack(rows)
    torch.testing.assert_close(network.hidden(context), h)
    assert isinstance(network.head, zloss.DenseOutput)
    expected = F.cross_entropy(h @ network.head.linear.weight.T, target)
    torch.testing.assert_close(network(context, target), expected)


def test_there_may_be_no_hidden_layer(device: torch.device) -> None:
    network = build(small(hidden=()), device)
    context, target = batch(device)
    assert torch.equal(network.hidden(context), network.embedding(context).flatten(1))
    network(context, target).backward()
    for optimizer in network.optimizers(lr=0.1):
        optimizer.step()


def test_activations_of_all_layers_are_of_the_size_of_the_embeddings() -> None:
    network = NgramNetwork(
        NetworkConfig(embedding=64, hidden=(512, 512, 512), embedding_scale=0.3), 1000
    )
    h = network.embedding(torch.randint(1000, (500, 6))).flatten(1)
    for layer in network.layers:
        assert h.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.2)
        h = layer(h)
    assert h.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head", SCALABLE_HEADS)
def test_the_head_starts_at_its_scale(head: str, bias: bool, device: torch.device) -> None:
    networks = []
    for output_scale in (1.0, 0.25):
        torch.manual_seed(0)
        config = zloss.HeadConfig(head=head, options={"bias": bias})
        networks.append(build(replace(small(), head=config, output_scale=output_scale), device))
    plain, scaled = networks
    context, target = batch(device)
    assert torch.equal(plain.hidden(context), scaled.hidden(context)), "it is for the head alone"
    torch.testing.assert_close(logits_of(scaled, context), 0.25 * logits_of(plain, context))
    # Statistics of a factored layer are about the weights that it has now.
    linear = nn.Linear(scaled.head.in_features, CLASSES, bias=bias, device=device)
    with torch.no_grad():
        for name, parameter in linear_of(scaled).named_parameters():
            linear.get_parameter(name).copy_(parameter)
    expected = config.build_loss(CLASSES)(linear(scaled.hidden(context)), target)
    torch.testing.assert_close(scaled(context, target), expected)


def linear_of(network: NgramNetwork) -> nn.Linear:
    if isinstance(network.head, zloss.DenseOutput):
        return network.head.linear
    assert isinstance(network.head, zloss.SphericalOutput)
    return network.head.layer.to_linear()


def logits_of(network: NgramNetwork, context: Tensor) -> Tensor:
    assert isinstance(network.head, zloss.DenseOutput | zloss.SphericalOutput)
    return network.head.logits(network.hidden(context))


def test_seeds_decide_the_weights() -> None:
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(clones(build(small())))
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    assert not torch.equal(networks[0]["embedding.weight"], networks[2]["embedding.weight"])


@every_head
def test_state_goes_into_another_network(head: str, device: torch.device) -> None:
    network, other = build(small(head), device), build(small(head), device)
    context, target = batch(device)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.hidden(context), network.hidden(context))
    assert torch.equal(
        other.head.rank(other.hidden(context), target),
        network.head.rank(network.hidden(context), target),
    )


# ---- training --------------------------------------------------------------------------------------------------------


def test_gradients_of_embeddings_are_row_sparse(device: torch.device) -> None:
    network = build(small(), device)
    context, target = batch(device)
    network(context, target).backward()
    grad = network.embedding.weight.grad
    assert grad is not None
    assert grad.layout == torch.sparse_coo
    rows = grad.coalesce().indices()[0]
    assert set(rows.tolist()) == set(context.flatten().tolist())


@every_head
@every_trunk
def test_every_head_trains(head: str, trunk: Any, device: torch.device) -> None:
    network = build(small(head), device)
    context, target = batch(device)
    before = clones(network)
    optimizers = network.optimizers(trunk, lr=0.01, output_lr=0.02)
    losses = []
    for _ in range(30):
        torch.manual_seed(0)  # samples that are always the same, so that losses can be compared
        loss = network(context, target)
        losses.append(loss.item())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < losses[0]
    trunk_names = [name for name in before if not name.startswith("head.")]
    assert len(trunk_names) == 5
    for name, parameter in network.named_parameters():
        if name in trunk_names:
            assert not torch.equal(parameter, before[name]), name
    unseen = torch.arange(CLASSES // 2, CLASSES)
    assert torch.equal(network.embedding.weight[unseen], before["embedding.weight"][unseen])
    assert any(
        not torch.equal(p, before[f"head.{name}"]) for name, p in network.head.named_parameters()
    )


@every_head
def test_plain_sgd_is_that_of_a_dense_twin(head: str, device: torch.device) -> None:
    """Repeated words of a context add up."""
    network = build(small(head), device)
    context, target = batch(device)
    context[:, 1] = context[:, 0]
    before = clones(network)
    torch.manual_seed(0)
    h = F.embedding(context, weight := before["embedding.weight"].requires_grad_()).flatten(1)
    layers = [
        before[f"layers.{n}.{kind}"].requires_grad_()
        for n in range(2)
        for kind in ("weight", "bias")
    ]
    h = F.relu(F.linear(F.relu(F.linear(h, *layers[:2])), *layers[2:]))
    torch.manual_seed(0)
    network.head(h, target).backward()
    network.zero_grad()
    torch.manual_seed(0)
    network(context, target).backward()
    for optimizer in network.optimizers(lr=0.3, output_lr=0.7):
        optimizer.step()
    for parameter, twin in zip(trunk_parameters(network), (weight, *layers), strict=True):
        assert twin.grad is not None
        torch.testing.assert_close(parameter.detach(), (twin - 0.3 * twin.grad).detach())


def test_learning_rates_go_to_their_layers() -> None:
    rows, dense, head = build(small()).optimizers(lr=0.1, output_lr=50.0)
    assert [o.param_groups[0]["lr"] for o in (rows, dense, head)] == [0.1, 0.1, 50.0]
    assert isinstance(head, zloss.FactoredSGD)
    assert [o.param_groups[0]["lr"] for o in build(small()).optimizers("adam", lr=0.1)] == [
        0.1,
        0.1,
        0.1,
    ]


def test_hidden_layers_take_their_step_in_one_launch_on_a_gpu(device: torch.device) -> None:
    _, dense, _ = build(small(), device).optimizers(lr=0.1)
    assert dense.param_groups[0]["fused"] == (True if device.type == "cuda" else None)


@every_trunk
def test_weight_decay_is_for_dense_layers(trunk: Any) -> None:
    rows, dense, head = build(small()).optimizers(
        trunk, lr=0.1, weight_decay=0.01, output_weight_decay=0.02
    )
    assert rows.param_groups[0].get("weight_decay", 0) == 0
    assert (dense.param_groups[0]["weight_decay"], head.param_groups[0]["weight_decay"]) == (
        0.01,
        0.02,
    )
    with pytest.raises(ValueError, match="would change every row at every step"):
        build(small("sampled")).optimizers(trunk, lr=0.1, output_weight_decay=0.02)


def test_it_learns_a_text_by_heart(device: torch.device) -> None:
    """Every word of this text follows from the one before."""
    words = torch.arange(400, device=device) * 7 % CLASSES
    windows = words.unfold(0, CONTEXT + 1, 1)
    context, target = windows[:, :-1], windows[:, -1]
    network = build(small("dense"), device)
    optimizers = network.optimizers(lr=0.5)
    for _ in range(150):
        network(context, target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert (network.head.rank(network.hidden(context), target) == 1).float().mean() > 0.95


# ---- dropout, precision ----------------------------------------------------------------------------------------------


def test_dropout_is_for_training_only(device: torch.device) -> None:
    network = build(small(dropout=0.5, hidden=(400, 400)), device)
    context, _ = batch(device)
    assert not torch.equal(network.hidden(context), network.hidden(context))
    network.eval()
    h = network.hidden(context)
    assert torch.equal(network.hidden(context), h)
    network.train()
    dropped = (network.hidden(context) == 0).float().mean() - (h == 0).float().mean()
    assert 0.1 < dropped < 0.5  # half of what is not 0 anyway, about half of all


@every_head
def test_bfloat16_is_for_the_trunk_only(head: str, device: torch.device) -> None:
    network = build(small(head, precision="bf16"), device)
    exact = build(small(head), device)
    exact.load_state_dict(network.state_dict())
    context, target = batch(device)
    h = network.hidden(context)
    assert h.dtype == torch.float32
    # 8 bits of mantissa, two layers, a few dozen terms each.
    torch.testing.assert_close(
        h, exact.hidden(context), rtol=0, atol=0.02 * exact.hidden(context).max().item()
    )
    assert not torch.equal(h, exact.hidden(context))
    network(context, target).backward()
    assert all(p.dtype == torch.float32 for p in network.parameters() if p.is_floating_point())
    for parameter in trunk_parameters(network):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (
            parameter.grad.coalesce().values().isfinite().all()
            if parameter.grad.is_sparse
            else True
        )
    for optimizer in network.optimizers(lr=0.1):
        optimizer.step()


@pytest.mark.parametrize("tf32", [True, False])
def test_a_hidden_layer_is_its_definition_and_leaves_the_setting_alone(
    tf32: bool, device: torch.device
) -> None:
    layer = RectifiedLinear(6, 4, tf32=tf32, device=device, dtype=torch.float64)
    x = torch.randn(5, 6, device=device, dtype=torch.float64, requires_grad=True)
    matmul: Any = torch.backends.cuda.matmul
    before = (
        matmul.fp32_precision if hasattr(torch.backends, "fp32_precision") else matmul.allow_tf32
    )
    expected = F.relu(F.linear(x, layer.weight, layer.bias))
    assert 0 < int((expected == 0).sum()) < expected.numel(), "some of each kind"
    torch.testing.assert_close(layer(x), expected)
    assert torch.autograd.gradcheck(lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, x), (
        x, layer.weight, layer.bias
    ))  # fmt: skip
    after = (
        matmul.fp32_precision if hasattr(torch.backends, "fp32_precision") else matmul.allow_tf32
    )
    assert after == before


def test_a_hidden_layer_does_not_hide_what_is_not_a_number(device: torch.device) -> None:
    """Training is stopped by a loss that is none."""
    layer = RectifiedLinear(6, 4, device=device)
    with torch.no_grad():
        layer.weight[2, 3] = torch.nan
    y = layer(torch.ones(5, 6, device=device))
    assert y.isnan().sum(0).tolist() == [0, 0, 5, 0]
    y.backward(torch.ones_like(y))
    assert layer.bias.grad is not None
    assert layer.bias.grad[2] == 5, "as of torch's own"


def test_tf32_rounds_the_trunk_on_a_gpu(cuda: torch.device) -> None:
    options: dict[str, Any] = {"embedding": 64, "hidden": (256, 256)}
    network, exact = build(small(precision="tf32", **options), cuda), build(small(**options), cuda)
    exact.load_state_dict(network.state_dict())
    context, target = batch(cuda, rows=64)
    h = network.hidden(context)
    assert not torch.equal(h, exact.hidden(context))
    torch.testing.assert_close(
        h, exact.hidden(context), rtol=0, atol=0.005 * exact.config.embedding_scale
    )
    for model in (network, exact):
        model(context, target).backward()
    grads = [[p.grad for p in model.layers.parameters()] for model in (network, exact)]
    for tf32, float32 in zip(*grads, strict=True):
        assert tf32 is not None
        assert float32 is not None
        assert 0 < (tf32 - float32).norm() < 0.01 * float32.norm()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_step_does_not_wait_for_the_device(precision: Any, cuda: torch.device) -> None:
    network = build(small(precision=precision, dropout=0.1), cuda)
    context, target = batch(cuda)
    optimizers = network.optimizers(lr=0.1)

    def step() -> None:
        network(context, target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    step()
    with no_synchronisation():
        step()


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "must be at least 1, got 0, 5 and (16, 8)"),
        ({"embedding": -1}, "must be at least 1, got 3, -1 and (16, 8)"),
        ({"hidden": (16, 0)}, "must be at least 1, got 3, 5 and (16, 0)"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan"),
        ({"embedding_scale": 0.0}, "embedding_scale must be a finite number > 0, got 0.0"),
        ({"output_scale": math.inf}, "output_scale must be a finite number > 0, got inf"),
        (
            {"precision": "bf61"},
            "unknown precision: 'bf61'; did you mean 'bf16'? known: float32, tf32, bf16",
        ),
    ],
)
def test_bad_configs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small(**options)


@pytest.mark.parametrize("head", sorted(set(HEADS) - set(SCALABLE_HEADS)))
def test_other_heads_have_no_scale(head: str) -> None:
    assert small(head, output_scale=1.0) == small(head)
    message = f"output_scale=0.5 is for the heads dense, factored, gram: the {head} head starts at a scale of its own"
    with pytest.raises(ValueError, match=message):
        small(head, output_scale=0.5)


def test_lists_are_taken_for_tuples() -> None:
    hidden: Any = [16, 8]
    assert small(hidden=hidden) == small()


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(4, 2, dtype=torch.long), "context must have shape (B, 3), got (4, 2)"),
        (torch.zeros(3, dtype=torch.long), "context must have shape (B, 3), got (3,)"),
        (torch.zeros(4, 3), "context must hold integer class indices, got dtype torch.float32"),
        (torch.full((4, 3), 40), "word 40 of a context is out of range: expected 0 <= word < 40"),
        (torch.full((4, 3), -1), "word -1 of a context is out of range: expected 0 <= word < 40"),
    ],
)
def test_bad_contexts(context: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build(small())(context, torch.zeros(len(context), dtype=torch.long))


def test_an_unknown_optimizer() -> None:
    name: Any = "adma"
    with pytest.raises(
        ValueError, match=re.escape("unknown optimizer: 'adma'; did you mean 'adam'?")
    ):
        build(small()).optimizers(name, lr=0.1)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_steps_without_gradients_in_memory_are_the_same(
    weight_decay: float, precision: Any, device: torch.device
) -> None:
    plain = build(small(precision=precision), device)
    network = copy.deepcopy(plain)
    expected = plain.optimizers(lr=0.1, weight_decay=weight_decay)
    optimizers = network.optimizers(lr=0.1, weight_decay=weight_decay, forms_gradients=False)
    for number in range(5):
        context, target = batch(device)
        for _ in range(1 + number % 2):  # gradients add up
            plain(context, target).backward()
            network(context, target).backward()
        for optimizer in (*expected, *optimizers):
            optimizer.step()
            optimizer.zero_grad()
    # One rounding less in each step.
    for one, other in zip(trunk_parameters(network), trunk_parameters(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert all(
        not layer.grad_factors for layer in network.layers if isinstance(layer, RectifiedLinear)
    )


def test_gradients_that_are_not_formed_can_be_dropped(device: torch.device) -> None:
    network = build(small(), device)
    before = [parameter.detach().clone() for parameter in trunk_parameters(network)]
    optimizers = network.optimizers(lr=0.1, forms_gradients=False)
    network(*batch(device)).backward()
    for optimizer in optimizers:
        optimizer.zero_grad()
    for optimizer in optimizers:
        optimizer.step()
    for parameter, old in zip(trunk_parameters(network), before, strict=True):
        assert torch.equal(parameter, old)


def test_what_is_not_formed_cannot_be_clipped(device: torch.device) -> None:
    network = build(small(), device)
    before, optimizers = clones(network), network.optimizers(lr=0.1, forms_gradients=False)
    with pytest.raises(
        ValueError, match=r"clip=1e-06 needs the gradients of all layers.*forms_gradients=True"
    ):
        network.learn(*batch(device), optimizers, clip=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in clones(network).items())


@pytest.mark.parametrize("clip", [None, 0.1])
def test_learning_takes_one_step_of_all_optimizers(
    clip: float | None, device: torch.device
) -> None:
    plain = build(small("dense"), device)
    network = copy.deepcopy(plain)
    context, target = batch(device)
    expected = plain.optimizers(lr=0.1)
    loss = plain(context, target)
    loss.backward()
    if clip is not None:
        zloss.clip_grad_norm_(plain, clip)
    for optimizer in expected:
        optimizer.step()
    assert torch.equal(
        network.learn(context, target, network.optimizers(lr=0.1), clip=clip), loss.detach()
    )
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        assert one.grad is None or not one.grad.any()


@pytest.mark.parametrize(("precision", "expected"), [("float32", False), ("tf32", True)])
def test_the_head_learns_in_its_own_precision(precision: Any, expected: bool) -> None:
    """And what comes after it in the one of before."""
    seen = []

    class Spy(nn.Module):
        def forward(self, h: Tensor, target: Tensor) -> Tensor:
            seen.append(is_tf32())
            return h.sum()

    head = zloss.HeadConfig(head="dense")
    network = NgramNetwork(
        NetworkConfig(context=2, embedding=3, hidden=(4,), head_precision=precision, head=head),
        num_classes=10,
    )
    optimizers = network.optimizers(lr=0.1)
    network.head = Spy()  # type: ignore[assignment]
    network.learn(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long), optimizers)
    assert (seen, is_tf32()) == ([expected], False)


def is_tf32() -> bool:
    matmul: Any = torch.backends.cuda.matmul
    return bool(
        matmul.fp32_precision == "tf32"
        if hasattr(torch.backends, "fp32_precision")
        else matmul.allow_tf32
    )
