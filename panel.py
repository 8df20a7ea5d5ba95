"""panel: signs that a run is about to collapse."""
import math
import statistics


def collapse_warnings(history, window=5):
    """Early signs of an Echo Trap: [(signal, sentence)], mostly empty.

    history: one dict per step. Read are success, reward_std (in-group), entropy, grad_norm, valid,
    distinct_3gram, response_length. Missing, None or NaN: not measured.
    Means over `window` steps are compared; the thresholds are ours. Learning lowers reward std and
    entropy as well, so most signals count only while success is neither `rising`, its best in the
    last 2 windows, nor `solved`, half of its way from the first steps to 1, or when it falls."""
    if len(history) < 2 * window:
        return []
    success = moving_mean(history, "success", window)
    falling = success[-1] < max(moving_mean(history, "success", 2 * window)) - 0.15
    solved = not falling and success[-1] >= min(0.9, 0.5 + 0.5 * success[0])
    best = success.index(max(success))
    recent = best >= len(success) - 2 * window
    rising = not falling and recent and success[best] > success[0] + 0.03
    warnings = []
    for signal, past, now, seen, meaning in echo_trap_signals(
            history, window, solved, falling, rising):
        if seen:
            figures = f"{signal} {past:.3g} -> {now:.3g}, success now {success[-1]:.0%}"
            warnings.append((signal, f"{meaning} ({figures})."))
    return warnings


def echo_trap_signals(history, window, solved, falling, rising):
    """Rows (signal, past, now, seen, meaning). Echo Trap (arXiv:2504.20073): reward std
    falls, entropy leaves its smooth decay, gradients spike, texts repeat, in this order usually.
    What was not measured is NaN, and no comparison with NaN is true."""
    stuck = not solved and not rising
    std = moving_mean(history, "reward_std", window)
    entropy = moving_mean(history, "entropy", window)
    valid = moving_mean(history, "valid", window)
    distinct = moving_mean(history, "distinct_3gram", window)
    length = moving_mean(history, "response_length", window)

    expected = std[0] * shrinkage(history, window)
    share = 0.7 if falling else 0.5
    before = entropy[-1 - window]
    low = min(filter(math.isfinite, entropy[:-window]), default=math.nan)
    high = max(1.5 * low, low + 0.2 * entropy[0])
    norm = mean_of(history[-window:], "grad_norm")
    usual_norm = mean_of(history[:-window], "grad_norm", statistics.median)
    changed = length[-1] < 0.5 * length[0] or length[-1] > 2 * length[0]
    return [
        ("reward_std",
         std[0], std[-1],
         stuck and std[-1] < share * expected,
         "echo trap: the tries at a task earn the same, little but noise is left to learn from"),
        ("entropy",
         before, entropy[-1],
         stuck and entropy[-1] < 0.5 * before,
         "echo trap: entropy leaves its smooth decay downwards"),
        ("entropy",
         low, entropy[-1],
         stuck and entropy[-1] > high,
         "echo trap: entropy leaves its smooth decay upwards, towards gibberish"),
        ("valid",
         max(valid), valid[-1],
         stuck and valid[-1] < max(valid) - 0.1,
         "the policy forgets how actions are written"),
        ("distinct_3gram",
         distinct[0], distinct[-1],
         stuck and distinct[-1] < 0.5 * distinct[0],
         "echo trap: the texts repeat themselves"),
        ("grad_norm",
         usual_norm, norm,
         not solved and norm > 5 * usual_norm,
         "echo trap: the gradient spikes, and few runs recover: go back to a checkpoint"),
        ("response_length",
         length[0], length[-1],
         falling and changed,
         "echo trap: the answers shrink or swell")]


def shrinkage(history, window):
    """How much of the first in-group std may be left because more tasks are solved: returns of 0 or
    1 with the mean p have a std of at most sqrt(p (1 - p)), which falls as p nears 1."""
    success = moving_mean(history, "success", window)
    if success[-1] > success[0]:
        first, last = (math.sqrt(max(p * (1 - p), 1e-6)) for p in (success[0], success[-1]))
        return min(1, last / first)
    return 1


def moving_mean(history, name, window):
    """mean_of a column over every `window` successive steps, the earliest first."""
    return [mean_of(history[i:i + window], name) for i in range(len(history) - window + 1)]


def mean_of(rows, name, mean=statistics.fmean):
    """Mean of the finite numbers in a column; NaN where there are none."""
    values = [row[name] for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    if not values:
        return math.nan
    return mean(values)
