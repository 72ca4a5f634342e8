"""The formulas of the spherical losses in Triton, as parts of the kernels of `zloss.kernels.spherical_losses`.

Each function returns the loss and its derivatives by the target t, the mean m and the scatter s, for C classes.
`zloss.losses.functions` defines the losses.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def z_loss(t, m, s, C, a, b, NOISE: tl.constexpr, TINY: tl.constexpr):
    """Return `softplus(a (b - z)) / a` with `z = (t - m) / sqrt(s / C)`, and its derivatives."""
    variance = s / C
    noise = NOISE * m
    # Activations without spread have z = 0, as in `z_normalize`: their variance is noise. NaN in the mean is kept.
    noisy = (variance <= noise * noise) | (variance <= TINY)
    flat = noisy & (m == m)
    inverse_std = 1 / tl.sqrt(tl.where(noisy, 1.0, variance))
    z = tl.where(flat, 0.0, (t - m) * inverse_std)
    # softplus(a x) / a and its derivative use an exponential that cannot overflow.
    x = b - z
    e = tl.exp(-tl.abs(a * x))
    rounded = 1 + e
    inverse = 1 / rounded
    log1p = tl.log(rounded) + (e - (rounded - 1)) * inverse  # corrects the rounding of 1 + e
    by_z = tl.where(flat, 0.0, -tl.where(x > 0, 1.0, e) * inverse)
    by_target = by_z * inverse_std
    return (
        tl.maximum(x, 0.0) + log1p / a,
        by_target,
        -by_target,
        by_z * z / (-2 * tl.where(noisy, 1.0, s)),
    )


@triton.jit
def squared_error(t, m, s, C):
    """Return half the squared distance to the one-hot target, and its derivatives."""
    value = 0.5 * (s + C * m * m - 2 * t + 1)
    return value, tl.zeros_like(t) - 1, C * m, tl.zeros_like(s) + 0.5


@triton.jit
def taylor_softmax(t, m, s, C):
    """Return the negative log-likelihood of the Taylor softmax, and its derivatives."""
    own = (t + 1) * (t + 1) + 1
    total = s + C * ((m + 1) * (m + 1) + 1)
    return tl.log(total) - tl.log(own), -2 * (t + 1) / own, 2 * (m + 1) * C / total, 1 / total


@triton.jit
def spherical_softmax(t, m, s, C, eps):
    """Return the negative log-likelihood of the spherical softmax, and its derivatives."""
    own = t * t + eps
    total = s + C * (m * m + eps)
    return tl.log(total) - tl.log(own), -2 * t / own, 2 * m * C / total, 1 / total
